"""Values computed from the positions of timesteps, which go on from chunk to chunk.

A running mean divides by the number of timesteps so far; other models take the time since their start as an input. A
model computes such values once for all rows of a batch. In a chunk, each row has its own: the rows of a batch are at
different timesteps of their sequences. So a chunk program computes them with a dimension of rows, from the number of
timesteps before the chunk, which is carried.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from ..exporter.subgraph import CASTS_LIKE
from ..outputs import axis_of
from ..proof.graph_calls import operator_name
from ..proof.timestep_rules import CONVERSIONS, INDEPENDENT, TaintMap

RESHAPING = {"aten.view", "aten.reshape", "aten._unsafe_view", "aten.expand"}
MOVING = {"aten.unsqueeze", "aten.transpose", "aten.permute", "aten.slice"}
_LOOKUPS = {"aten.embedding", "aten.index", "aten.index_select", "aten.gather", "aten.one_hot"}
"""Operators that take positions as indices: a table ends, and a session may be longer."""


class PositionValues:
    """The values computed from positions and constants alone, among the nodes visited so far."""

    def __init__(self, taints: TaintMap, positions: Mapping[Node, int]) -> None:
        self._taints, self._positions = taints, positions
        self._computed: set[Node] = set()
        self.calls: list[Node] = []
        """Calls that combine such values with those of a row."""

    def __contains__(self, node: object) -> bool:
        return node in self._computed or node in self._positions

    def follow(self, node: Node) -> bool:
        """Record a call with such values among its arguments; False if a chunk cannot compute it."""
        name, sources = operator_name(node), node.all_input_nodes
        if node.target in CASTS_LIKE:
            sources = sources[:1]
        if not any(source in self for source in sources):
            return False
        others = [source for source in sources if source not in self and not is_number(source)]
        if is_pointwise(node) and any(map(self._taints.is_time_expression, sources)):
            return False  # a value depends on the number of timesteps
        if self._has_rule(node, name) and all(self._is_constant(other) for other in others):
            self._computed.add(node)
            return True
        if name in _LOOKUPS or self.batch_dim(node) is None or not self._can_be_combined(node):
            return False
        self.calls.append(node)
        return True

    def batch_dim(self, node: Node) -> int | None:
        """Return the batch dimension of a node's tensor; None if it has none, or no one tensor."""
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        found = [dim for dim, size in enumerate(shape) if axis_of(size, self._taints.axes) == "batch"]
        return found[0] if len(found) == 1 else None

    def _has_rule(self, node: Node, name: str) -> bool:
        """Whether a chunk program can compute this call for each row."""
        source = node.all_input_nodes[0]
        if self.batch_dim(source) is not None and self.batch_dim(node) is None:
            return False
        return is_pointwise(node) or node.target in CASTS_LIKE or name in {*CONVERSIONS, *RESHAPING, *MOVING}

    def _is_constant(self, node: Node) -> bool:
        return self._taints.of.get(node) == INDEPENDENT and self.batch_dim(node) is None

    def _can_be_combined(self, node: Node) -> bool:
        """Whether the values have the dimensions of the call: broadcasting finds the rows of others."""
        own = [source for source in node.all_input_nodes if source in self]
        return is_pointwise(node) or all(self.batch_dim(source) is not None for source in own)


def is_pointwise(node: Node) -> bool:
    """Whether a call computes each element from the elements at its place."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or operator_name(node) == "aten.where"


def is_number(node: Node) -> bool:
    """Whether a node is a number, such as a size."""
    return not isinstance(node.meta.get("val"), torch.Tensor)
