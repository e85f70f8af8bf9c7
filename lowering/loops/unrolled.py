"""Trace of one request with a fixed number of timesteps, in which Python loops over time are unrolled."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from ..exported_graph import are_alike, user_inputs

IS_USER_INPUT = "is_user_input"
"""Key of a node's `meta`: the tensor is of a request, and no weight."""
_aten = torch.ops.aten
_SAME_VALUES = ("alias", "clone", "contiguous", "detach", "dropout", "lift_fresh_copy")
_IDENTITIES = {getattr(_aten, name).default for name in _SAME_VALUES}
"""Operators that return the values of their first argument, in eval mode."""
_VIEWS = {_aten.view.default, _aten._unsafe_view.default}
"""Reshapes that need a layout in memory, which a removed copy may have made."""
LISTS = {_aten.unbind.int, _aten.split.Tensor}
"""Operators that read all parts of a tensor, as a list of timesteps is."""
_OF_VIEWS = {
    *(_aten.reshape.default, _aten.unsqueeze.default, _aten.transpose.int, _aten.permute.default, _aten.slice.Tensor),
    *(*LISTS, operator.getitem),
}
"""Operators that make the views of which a list of timesteps is read."""


def simplify(exported: torch.export.ExportedProgram) -> Graph:
    """Remove identities, checks and reads of what was just written, which hide a recurrence; the graph."""
    graph: Graph = exported.graph
    for node in user_inputs(exported):
        node.meta[IS_USER_INPUT] = True
    lists: dict[object, Node] = {}
    for node in list(graph.nodes):
        if node.target is _aten._assert_tensor_metadata.default:
            graph.erase_node(node)
            continue
        if node.target in _VIEWS:
            node.target = _aten.reshape.default
        if node.target is _aten.split_with_sizes.default:
            _split_evenly(node)
        source = _only_part(node) if node.target is _aten.cat.default else _source(node)
        if node.target in LISTS:
            source = lists.setdefault(_made_of(node), node)
        if source not in (None, node):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    graph.eliminate_dead_code()  # an LSTM whose last state is unused is not marked: the calls of a loop are alike
    exported.graph_module.recompile()
    return graph


def _made_of(node: Node) -> object:
    """Return what is equal for lists of the same parts of one tensor: after a write in place there are several."""
    first, *others = node.args
    is_view = isinstance(first, Node) and first.target in _OF_VIEWS
    return node.target, _made_of(first) if is_view else first, str(others)  # type: ignore[arg-type]  # a node


def _split_evenly(node: Node) -> None:
    """Give equal sizes as one, as one part for each timestep has it."""
    tensor, sizes, *dim = node.args
    assert isinstance(sizes, (list, tuple))
    if len(set(sizes)) == 1:
        node.target, node.args = _aten.split.Tensor, (tensor, sizes[0], *dim)


def _only_part(node: Node) -> Node | None:
    """Leave out parts without elements, as of rows that end at no timestep; return an only part."""
    tensors, *dim = node.args
    assert isinstance(tensors, (list, tuple))
    parts = [part for part in tensors if isinstance(part, Node) and part.meta["val"].numel() > 0]
    if parts:
        node.args = (parts, *dim)
    return parts[0] if len(parts) == 1 else None


def _source(node: Node) -> Node | None:
    """Return the node with the same values, if there is one."""
    target: Any = node.target
    first = node.args[0] if node.args else None
    if not isinstance(first, Node):
        return None
    if target in _IDENTITIES:
        return None if target is _aten.dropout.default and node.args[2] else first
    if target is _aten.copy.default:
        written = node.args[1]
        return written if isinstance(written, Node) and are_alike(first, written) else None
    if target in (_aten.slice.Tensor, _aten.slice_scatter.default) and _is_whole_row(node):
        return first if target is _aten.slice.Tensor else node.args[1]  # type: ignore[return-value]  # a node
    if target is _aten.select.int and first.target is _aten.select_scatter.default and not _is_of_several(node, first):
        return first.args[1] if first.args[2:4] == node.args[1:3] else None  # type: ignore[return-value]  # a node
    return None


def _is_of_several(read: Node, buffer: Node) -> bool:
    """Whether the same line reads other timesteps of a buffer too, as a loop over a finished one does."""
    line = read.meta.get("stack_trace")
    reads = (user for user in buffer.users if user.target is _aten.select.int and user.meta.get("stack_trace") == line)
    others = (user for user in reads if user.args[1] == read.args[1] and user.args[2] != read.args[2])
    return any(any(later.target is not _aten.copy.default for later in other.users) for other in others)


def _is_whole_row(node: Node) -> bool:
    """Whether a slice is all of a dimension of size 1, as the rows `x[0:1]` of one request are."""
    own, part = node.args[0], node if node.target is _aten.slice.Tensor else node.args[1]
    position = 1 if node.target is _aten.slice.Tensor else 2
    dim = node.args[position] if len(node.args) > position else 0
    assert isinstance(own, Node)
    assert isinstance(part, Node)
    return are_alike(own, part) and bool(own.meta["val"].shape[dim] == 1)
