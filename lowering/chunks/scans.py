"""Scans in a graph: loops over the timesteps, whose states are carried from chunk to chunk.

A step of a scan compares the position of its timestep with the lengths, and keeps the state of rows that have ended. So
the states after a chunk are those after each row's own last timestep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch.fx import GraphModule, Node


@dataclass(frozen=True)
class Scan:
    """The arguments of a call of torch's `scan`."""

    step: GraphModule
    """The graph of one step: of the states, a timestep of each sequence, and the shared tensors."""
    first: tuple[Node, ...]
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
