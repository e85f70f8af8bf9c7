"""Trace of one request with a fixed number of timesteps, in which Python loops over time are unrolled."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..exporter.export import drop_unused

_aten = torch.ops.aten
_IDENTITIES = {
    _aten.alias.default,
    _aten.clone.default,
    _aten.contiguous.default,
    _aten.detach.default,
    _aten.dropout.default,
    _aten.lift_fresh_copy.default,
}
"""Operators that return the values of their first argument, in eval mode."""
_VIEWS = {_aten.view.default, _aten._unsafe_view.default}
"""Reshapes that need a layout in memory, which a removed copy may have made."""


def simplify(exported: torch.export.ExportedProgram) -> Graph:
    """Remove identities, checks and reads of what was just written, which hide a recurrence; the graph."""
    graph: Graph = exported.graph
    for node in list(graph.nodes):
        if node.target is _aten._assert_tensor_metadata.default:
            graph.erase_node(node)
            continue
        if node.target in _VIEWS:
            node.target = _aten.reshape.default
        source = _source(node)
        if source is not None:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    drop_unused(exported)
    return graph


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
        return written if isinstance(written, Node) and _same_layout(first, written) else None
    if target is _aten.select.int and first.target is _aten.select_scatter.default:
        return first.args[1] if first.args[2:4] == node.args[1:3] else None  # type: ignore[return-value]  # a node
    return None


def _same_layout(a: Node, b: Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    return bool(x.shape == y.shape and x.dtype is y.dtype)
