"""Scans in a graph: loops over the timesteps, whose states are carried from chunk to chunk.

A step of a scan compares the position of its timestep with the lengths, and keeps the state of rows that have ended. So
the states after a chunk are those after each row's own last timestep.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch.fx import GraphModule, Node

from ..graph_calls import operator_name


@dataclass(frozen=True)
class Scan:
    """The arguments of a call of torch's `scan`."""

    step: GraphModule
    """The graph of one step: of the states, a timestep of each sequence, and the shared tensors."""
    first: tuple[Node, ...]
    """The initial states."""
    each: tuple[Node, ...]
    """Tensors with a first dimension of timesteps."""
    shared: tuple[Node, ...]

    def placeholder(self, node: Node) -> Node:
        """Return the input of the step that has a timestep of one of `each`, or one of `shared`."""
        index = (*self.each, *self.shared).index(node)
        inputs = self.step.graph.find_nodes(op="placeholder")
        return cast(Node, inputs[len(self.first) + index])

    def only_detects_padding(self, positions: Node, lengths: Node) -> bool:
        """Whether the step uses positions and lengths only to find out which rows have ended."""
        position, length = self.placeholder(positions), self.placeholder(lengths)
        sizes = torch.ops.aten.sym_size.int
        comparisons = {*position.users, *(user for user in length.users if user.target is not sizes)}
        is_less = torch.ops.aten.lt.Tensor
        return all(node.target is is_less and node.args == (position, length) for node in comparisons)


def is_scan(node: object) -> bool:
    """Whether a node is a call of torch's `scan`."""
    return isinstance(node, Node) and node.target is torch.ops.higher_order.scan


def scan_of(node: Node) -> Scan:
    """Return the arguments of a call of `scan`."""
    step, first, each, shared = node.args
    assert isinstance(step, Node)
    owner = node.graph.owning_module
    assert owner is not None
    lists = [tuple(cast("list[Node]", nodes)) for nodes in (first, each, shared)]
    return Scan(cast(GraphModule, owner.get_submodule(str(step.target))), *lists)


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
