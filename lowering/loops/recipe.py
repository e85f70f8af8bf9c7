"""An unrolled graph as units: single calls, and families of calls, with a member for each timestep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import networkx as nx
import torch
from torch.fx import Node


class NotALoop(Exception):
    """A graph without a loop over timesteps."""


@dataclass(frozen=True)
class Count:
    """An integer `base + slope * T + frame_slope * S` for T timesteps and S steps of the loops."""

    base: int
    slope: int = 0
    frame_slope: int = 0

    def at(self, timesteps: Any, frames: Any) -> Any:
        """Return the integer for numbers of timesteps and of steps.

        >>> Count(-1, 1).at(7, 4)
        6
        """
        number = self.base + self.slope * timesteps if self.slope else self.base
        return number + self.frame_slope * frames if self.frame_slope else number

    def plus(self, number: int) -> Count:
        """Return the integer that is greater by `number`."""
        return replace(self, base=self.base + number)


@dataclass(frozen=True)
class Constant:
    """An argument that is neither a node nor an integer."""

    value: Any


@dataclass(frozen=True)
class Result:
    """The result of unit `unit`, a single call."""

    unit: int


@dataclass(frozen=True)
class Member:
    """Member `first + step * k` of the family `unit`, for the k-th member of the family that takes it."""

    unit: int
    first: Count
    step: int


@dataclass(frozen=True)
class Counting:
    """An integer `first + step * k` for the k-th member of a family."""

    first: Count
    step: int


@dataclass(frozen=True)
class Starting:
    """`first` for member 0 of a family, `rest` for the others: the state of a recurrence."""

    first: Operand
    rest: Operand


@dataclass(frozen=True)
class Run:
    """`count` members of the family `unit` in a list: `first`, `first + step`, ..."""

    unit: int
    first: Count
    step: int
    count: Count


@dataclass(frozen=True)
class Listed:
    """A list or tuple of arguments."""

    items: tuple[Operand | Run, ...]


Operand: TypeAlias = Count | Constant | Result | Member | Counting | Starting | Listed


@dataclass(frozen=True)
class Unit:
    """A call with its arguments; `count` is the number of members of a family, None for a single call."""

    target: Any
    args: tuple[Operand, ...]
    kwargs: Mapping[str, Operand]
    count: Count | None
    node: Node
    """The first member: its place in the model is that of the unit."""


@dataclass(frozen=True)
class Recipe:
    """The graph as units in the order of their first members, with the outputs."""

    units: tuple[Unit, ...]
    outputs: tuple[Operand, ...]
    frames: tuple[int, int] | None
    """The unit and its dimension whose size is the steps of the loops, if these are not the timesteps."""


@dataclass(frozen=True)
class Stacked:
    """Members of a family, or their own arguments: [members, ...]."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class LastOnly:
    """State of a recurrence that is known after its last member only."""

    tensor: torch.Tensor


def evaluation_order(recipe: Recipe) -> list[list[int]]:
    """Return the units in an order in which each has its arguments; those of one recurrence together."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(recipe.units)))
    for index, unit in enumerate(recipe.units):
        graph.add_edges_from((source, index) for source in sources_of(unit))
    if recipe.frames is not None:  # everything else may need to know how many steps the loops have
        first = {recipe.frames[0], *nx.ancestors(graph, recipe.frames[0])}
        graph.add_edges_from((recipe.frames[0], other) for other in set(graph) - first)
    components = nx.condensation(graph)
    order = nx.lexicographical_topological_sort(components, key=lambda c: min(components.nodes[c]["members"]))
    return [sorted(components.nodes[component]["members"]) for component in order]


def sources_of(unit: Unit) -> set[int]:
    """Return the units whose values a unit takes."""
    operands = operands_of((*unit.args, *unit.kwargs.values()))
    return {operand.unit for operand in operands if isinstance(operand, Result | Member | Run)}


def operands_of(arguments: Iterable[Any]) -> list[Any]:
    """Return arguments, those within lists, and both parts of states."""
    found: list[Any] = []
    pending = list(arguments)
    while pending:
        operand = pending.pop()
        found.append(operand)
        match operand:
            case Starting(first, rest):
                pending += [first, rest]
            case Listed(items):
                pending += items
    return found
