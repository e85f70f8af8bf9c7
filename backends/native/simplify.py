"""Simplification of a program's graph: fewer calls between the operators that are replaced."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

_aten = torch.ops.aten


def simplify(graph: Graph) -> None:
    """Remove calls without an effect, and changes of dimensions that are undone after a linear layer."""
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
    for node in _calls(graph, _aten.permute.default):
        permuted: Any = node.args[0]
        if permuted.target is _aten.permute.default and _order(permuted) == _inverse(_order(node)):
            _replace(node, permuted.args[0])
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
    """Turn linear(view(x)) into view(linear(x)), for views that leave the last dimension where it is."""
    viewed, *weights = node.args
    if not isinstance(viewed, Node) or not _leaves_last_dimension(viewed):
        return
    x, where = viewed.args
    value = node.meta["val"]
    with graph.inserting_before(node):
        linear = graph.call_function(_aten.linear.default, (x, *weights))
        is_permuted = viewed.target is _aten.permute.default
        value = value.permute(_inverse(_order(viewed))) if is_permuted else value.squeeze(where)
        linear.meta = {**node.meta, "val": value}
        result = graph.call_function(viewed.target, (linear, where))  # type: ignore[arg-type]  # an operator
        result.meta = dict(node.meta)
    _replace(node, result)
    _move_behind(graph, linear)


def _leaves_last_dimension(viewed: Node) -> bool:
    last = viewed.meta["val"].dim() - 1 if "val" in viewed.meta else 0
    if viewed.target is _aten.permute.default:
        return _order(viewed)[last] == last
    if viewed.target is not _aten.unsqueeze.default:
        return False
    dim = viewed.args[1]
    return isinstance(dim, int) and 0 <= dim < last


def _order(permuted: Node) -> list[int]:
    """The dimensions of a permutation's input, in the order of its output."""
    dims: Any = permuted.args[1]
    return [dim % len(dims) for dim in dims]


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
