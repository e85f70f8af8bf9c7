"""Views that a model writes in place and reads again, as in `x[..., :n].clamp_(-1, 1)`."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

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
    same = isinstance(written, Node) and not source.kwargs and not node.kwargs and _alike(written, node)
    return written if same and isinstance(written, Node) else None


def _alike(written: Node, read: Node) -> bool:
    """Whether two tensors have the same type and sizes; what is written may also be broadcast or cast."""
    ours, theirs = written.meta.get("val"), read.meta.get("val")
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return False
    return ours.dtype is theirs.dtype and list(map(str, ours.shape)) == list(map(str, theirs.shape))
