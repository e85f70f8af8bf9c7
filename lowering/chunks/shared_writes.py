"""Writes in place that reach other reads of the same tensor, so that the order of calls matters."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping

import torch

from ..proof.graph_calls import operator_name

_RETURNS_ITS_INPUT = {"aten.dropout", "aten.feature_dropout"}  # in eval mode, though their schemas do not say so


def find_shared_write(exported: torch.export.ExportedProgram) -> torch.fx.Node | None:
    """Return the first write in place whose old value, or a view of it, is read later; None if none is.

    A write into an input or a parameter is one too.
    """
    order = {node: index for index, node in enumerate(exported.graph.nodes)}
    for node in exported.graph.nodes:
        for tensor in _written(node):
            owner = tensor
            while (viewed := _viewed(owner)) is not None:
                owner = viewed
            if owner.op == "placeholder" or _is_read_later(owner, node, order):
                return node  # type: ignore[no-any-return]  # a node of the graph
    return None


def _is_read_later(tensor: torch.fx.Node, write: torch.fx.Node, order: Mapping[torch.fx.Node, int]) -> bool:
    """Whether a tensor is read after the write, other than through the result of the write."""
    return any(
        _is_read_later(user, write, order) if _viewed(user) is tensor else order[user] > order[write]
        for user in tensor.users
        if user is not write
    )


def _written(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    schema = getattr(node.target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write and position < len(node.args):
            given = node.args[position]
            if isinstance(given, torch.fx.Node):
                yield given


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node whose memory this one may share."""
    if not node.all_input_nodes:
        return None
    maker = node.all_input_nodes[0] if node.target is operator.getitem else node
    schema = getattr(maker.target, "_schema", None)
    shares = operator_name(maker) in _RETURNS_ITS_INPUT or (
        schema is not None and any(result.alias_info is not None for result in schema.returns)
    )
    return node.all_input_nodes[0] if shares else None
