"""Simplification of a program's graph: fewer calls between the operators that are replaced."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

_aten = torch.ops.aten


def simplify(graph: Graph) -> None:
    """Remove calls without an effect, and added dimensions of size 1 that are removed again."""
    for node in _calls(graph, _aten._assert_tensor_metadata.default):  # the signature checks dtypes already
        graph.erase_node(node)
    for node in _calls(graph, _aten.to.dtype):
        converted, *others = node.args
        if isinstance(converted, Node) and [converted.meta["val"].dtype] == others:
            _replace(node, converted)
    for node in _calls(graph, _aten.dropout.default):
        if node.args[2:] == (False,):
            _replace(node, node.args[0])
    for node in _calls(graph, _aten.linear.default):
        _move_behind(graph, node)
    for node in _calls(graph, _aten.squeeze.dim):
        added: Any = node.args[0]
        if added.target is _aten.unsqueeze.default and added.args[1] == node.args[1]:
            _replace(node, added.args[0])


def _calls(graph: Graph, target: Any) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function" and node.target is target]


def _replace(node: Node, other: Any) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def _move_behind(graph: Graph, node: Node) -> None:
    """Turn linear(x.unsqueeze(d)) into linear(x).unsqueeze(d), if d is not the last dimension."""
    wide, *weights = node.args
    if not isinstance(wide, Node) or wide.target is not _aten.unsqueeze.default:
        return
    x, dim = wide.args
    if not isinstance(dim, int) or not 0 <= dim < wide.meta["val"].dim() - 1:
        return
    with graph.inserting_before(node):
        linear = graph.call_function(_aten.linear.default, (x, *weights))
        linear.meta = {**node.meta, "val": node.meta["val"].squeeze(dim)}
        result = graph.call_function(_aten.unsqueeze.default, (linear, dim))
        result.meta = dict(node.meta)
    _replace(node, result)
