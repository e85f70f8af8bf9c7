"""Views that a model writes in place and reads again, as in `x[..., :n].clamp_(-1, 1)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..exported_graph import are_alike

SAME_ELEMENTS = {
    *("data", "clone", "detach", "contiguous", "cpu", "cuda", "squeeze", "unsqueeze", "view", "reshape", "flatten"),
    *("transpose", "t", "T", "permute", "expand", "repeat", "flip"),
}
"""Functions of torch whose results have all elements of their first argument, and no others."""
_aten = torch.ops.aten
_READS: dict[Any, Any] = {
    _aten.slice.Tensor: _aten.slice_scatter.default,
    _aten.select.int: _aten.select_scatter.default,
}
"""Operators that read a part of a tensor, with the operators that write such a part into a copy."""


def read_what_was_written(program: torch.export.ExportedProgram) -> None:
    """Replace the read of a part that was just written into a tensor by what was written.

    In a functional graph a write in place to a view is a write into its whole tensor, of which the view is then read.
    Most models do not read the rest, so that the write is left out.
    """
    graph = program.graph
    for node in graph.nodes:
        if (written := _written(node)) is not None:
            node.replace_all_uses_with(written)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _written(node: Node) -> Node | None:
    """Return the tensor that was written to the part that a node reads; None if it reads something else."""
    write = _READS.get(node.target)
    source = node.args[0] if write is not None else None
    if not isinstance(source, Node) or source.target is not write or source.args[2:] != node.args[1:]:
        return None
    written = source.args[1]
    same = isinstance(written, Node) and not source.kwargs and not node.kwargs and are_alike(written, node)
    return written if same and isinstance(written, Node) else None


_MEMORY = "_neuron_lstm_memory"
"""Attribute of a tensor and of all its views: `writes` are the calls that have written to their memory."""
_OPERATORS = "setitem set iadd isub imul idiv itruediv ifloordiv imod ipow iand ior ixor ilshift irshift"
_ASSIGNMENTS = {f"__{name}__" for name in _OPERATORS.split()}


class Fact:
    """A fact about the elements of a tensor, which holds until something writes to its memory."""

    def __init__(self, name: str) -> None:
        self._attribute = f"_neuron_lstm_{name}"

    def note(self, tensor: torch.Tensor, value: Any) -> torch.Tensor:
        """Record the fact, and return the tensor. None: it is not known. Views share its memory from now on."""
        memory = getattr(tensor, _MEMORY, None) or SimpleNamespace(writes=0)
        setattr(tensor, _MEMORY, memory)
        setattr(tensor, self._attribute, (value, memory, memory.writes))
        return tensor

    def of(self, tensor: object) -> Any:
        """Return the fact about a tensor; None if it is not known."""
        value, memory, writes = getattr(tensor, self._attribute, (None, None, 0))
        return value if memory is not None and memory.writes == writes else None


def shares_memory(tensor: torch.Tensor) -> bool:
    """Whether the result of a call is a view of a tensor about which facts are recorded."""
    return hasattr(tensor, _MEMORY)


def note_views_after(args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
    """Record the memory of results that are views of an argument, whichever function made them."""
    known = [tensor for tensor in _tensors((args, kwargs)) if hasattr(tensor, _MEMORY)]
    for made in _tensors(result) if known else ():
        place = made.untyped_storage()._cdata
        source = next((tensor for tensor in known if tensor.untyped_storage()._cdata == place), None)
        if source is not None:
            setattr(made, _MEMORY, getattr(source, _MEMORY))


def note_writes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Record which tensors a call changes in place, and so their views and what they are views of."""
    written = _tensors(kwargs.get("out"))
    if name in _ASSIGNMENTS or kwargs.get("inplace") is True or (name.endswith("_") and not name.startswith("__")):
        written += _tensors(args[0] if args else dict(kwargs))
    for memory in [getattr(tensor, _MEMORY, None) for tensor in written]:
        if memory is not None:
            memory.writes += 1


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
