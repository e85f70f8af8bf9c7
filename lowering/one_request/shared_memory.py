"""Memory that tensors of a trace share with their views, and the calls that write to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_MEMORY = "_neuron_lstm_memory"
_OPERATORS = "setitem set iadd isub imul idiv itruediv ifloordiv imod ipow iand ior ixor ilshift irshift"
_ASSIGNMENTS = {f"__{name}__" for name in _OPERATORS.split()}


class Memory:
    """Memory of a tensor and of all its views."""

    def __init__(self) -> None:
        self.is_written = False
        """Whether a call has written to it since facts about its elements were recorded."""


def memory_of(tensor: torch.Tensor) -> Memory:
    """Return the memory of a tensor, which its views share from now on."""
    memory: Memory | None = getattr(tensor, _MEMORY, None)
    if memory is None:
        memory = Memory()
        setattr(tensor, _MEMORY, memory)
    return memory


def note_views_after(args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
    """Record the memory of results that are views of an argument, whichever function made them."""
    known = [tensor for tensor in _tensors((args, kwargs)) if hasattr(tensor, _MEMORY)]
    for made in _tensors(result) if known else ():
        source = next((tensor for tensor in known if _place(tensor) == _place(made)), None)
        if source is not None:
            setattr(made, _MEMORY, memory_of(source))


def note_write(tensor: torch.Tensor) -> None:
    """Record that a call writes to a tensor, and so to its views and to what it is a view of."""
    if (memory := getattr(tensor, _MEMORY, None)) is not None:
        memory.is_written = True


def written_tensors(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a call changes in place."""
    written = _tensors(kwargs.get("out"))
    if name in _ASSIGNMENTS or kwargs.get("inplace") is True or (name.endswith("_") and not name.startswith("__")):
        written += _tensors(args[0] if args else dict(kwargs))
    return written


def _place(tensor: torch.Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
