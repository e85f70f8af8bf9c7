"""Sources of carried values: nodes whose values are passed from one chunk of time to the next.

A scan is a loop over the timesteps, whose states are carried. A step of it compares the position of its timestep with
the lengths, and keeps the state of rows that have ended. So the states after a chunk are those after each row's own
last timestep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch.fx import GraphModule, Node

from ..exported_graph import dims_argument, operator_name
from .past_timesteps import PastTimesteps

CarryKind = Literal["state", "past", "timesteps", "cumsum", "last", "sum", "max", "min"]


@dataclass(frozen=True)
class CarrySource:
    """A node of the graph whose value is carried from one chunk of a sequence to the next."""

    kind: CarryKind
    """Update rule. The state or last timesteps of a chunk, their number, the value at the last one, or a reduction."""
    node: Node
    """The recurrence, the call that reads past timesteps, their number before it, or the reduction over time."""
    element: int
    """Index of the result: 1 for h_n, 2 for c_n; of a scan, that of the state; 0 where there is one."""
    past: PastTimesteps | None = None

    @property
    def name(self) -> str:
        """Name of the value: `lstm.h`, `lstm.c`, `conv1d.past`, or the name of the reducing node."""
        if is_scan(self.node):
            return f"{self.node.name}.state_{self.element}"
        if self.kind == "state":
            return f"{self.node.name}.{' hc'[self.element]}"
        if self.past is not None:
            return f"{self.node.name}.past"
        if self.kind == "timesteps":
            return "timesteps"
        return self.node.all_input_nodes[0].name if operator_name(self.node) == "getitem" else self.node.name

    def results(self) -> list[Node]:
        """Return the nodes of the graph that have this value after the last timestep."""
        if self.kind in ("past", "timesteps", "cumsum"):
            return []
        if self.kind != "state":
            return [self.node]
        return [user for user in self.node.users if user.args[1] == self.element]

    @property
    def value(self) -> torch.Tensor:
        """The fake tensor, with shape and dtype."""
        if self.past is not None:
            return self.past.value
        if is_scan(self.node):
            return cast(torch.Tensor, initial_value_node(self).meta["val"])
        fake: torch.Tensor = self.node.meta["val"][self.element] if self.kind == "state" else self.node.meta["val"]
        fake = fake.select(self.summed_dim, 0) if self.kind == "cumsum" else fake
        # Rounded at the end of each chunk, the sums of a session would drift: eager mode adds in double.
        is_sum = self.kind in ("sum", "cumsum") and fake.dtype.is_floating_point
        return fake.double() if is_sum else fake

    @property
    def summed_dim(self) -> int:
        """The time dimension along which a cumulative sum runs."""
        (dim,) = cast("list[int]", dims_argument(self.node))
        return dim


def initial_value_node(carry: CarrySource) -> Node:
    """Return the model's own value before the first timestep, such as the initial state of a recurrence."""
    if carry.past is not None:
        return carry.past.first
    is_listed = is_scan(carry.node)
    state = scan_of(carry.node).first[carry.element] if is_listed else carry.node.args[1 + carry.element]
    assert isinstance(state, Node)
    return state


@dataclass(frozen=True)
class Scan:
    """The arguments of a call of torch's `scan`."""

    step: GraphModule
    """The graph of one step: of the states, a timestep of each sequence, and the shared tensors."""
    first: tuple[Node, ...]
    each: tuple[Node, ...]
    """Tensors with a first dimension of timesteps."""
    shared: tuple[Node, ...]

    def only_detects_padding(self, positions: Node, lengths: Node) -> bool:
        """Whether the step uses positions and lengths only to find out which rows have ended."""
        inputs = self.step.graph.find_nodes(op="placeholder")
        own = (*self.each, *self.shared)
        position, length = (inputs[len(self.first) + own.index(node)] for node in (positions, lengths))
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
