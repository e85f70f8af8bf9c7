"""One trace as units: the arguments of each family of calls follow one rule over the timesteps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.fx import Graph, Node

from ..errors import UnknownLoop, at_line
from .call_sites import CallSite, Frames, by_list, calls_by_site
from .recipe import Constant, Count, Counting, Listed, Member, Operand, Recipe, Result, Run, Starting, Unit

_SHORTEST_RUN = 3
"""Members of a family in a list that are assumed to be all of a loop."""


class TraceWriter:
    """Writes one trace as units."""

    def __init__(
        self,
        graph: Graph,
        per_step: Mapping[CallSite, int],
        frames: Frames | None,
        loops: int | None,
        lists: Collection[CallSite],
    ) -> None:
        self._graph, self._frames = graph, frames
        order = {node: index for index, node in enumerate(graph.nodes)}
        families = [
            family
            for key, nodes in calls_by_site(graph).items()
            if key in per_step
            for family in (by_list(nodes) if key in lists else _split(nodes, per_step[key], loops))
        ]
        members = {node for family in families for node in family}
        units = [(family, True) for family in families]
        units += [([node], False) for node in graph.nodes if node not in members and node.op != "output"]
        self._units = sorted(units, key=lambda unit: order[unit[0][0]])
        self._places = {
            node: (index, number if family else None)
            for index, (nodes, family) in enumerate(self._units)
            for number, node in enumerate(nodes)
        }

    def recipe(self) -> Recipe:
        """Return the units. Raises `UnknownLoop`: the arguments of a family follow no rule."""
        units = tuple(self._family(nodes) if family else self._single(nodes[0]) for nodes, family in self._units)
        output = self._graph.output_node()
        names = {nodes[0].name: index for index, (nodes, _) in enumerate(self._units)}
        frames = None if self._frames is None else (names[self._frames.name], self._frames.dim)
        results: Any = output.args[0]
        return Recipe(units, tuple(self._operand(value) for value in results), frames)

    def _single(self, node: Node) -> Unit:
        args = tuple(self._operand(value) for value in node.args)
        kwargs = {name: self._operand(value) for name, value in node.kwargs.items()}
        return Unit(node.name if node.op == "placeholder" else node.target, args, kwargs, None, node)

    def _family(self, nodes: Sequence[Node]) -> Unit:
        first = nodes[0]
        if len({len(node.args) for node in nodes}) > 1 or len({tuple(node.kwargs) for node in nodes}) > 1:
            raise UnknownLoop(f"{first.target} has different arguments at some timesteps{at_line(first)}")
        args = tuple(self._pattern([node.args[i] for node in nodes], first) for i in range(len(first.args)))
        kwargs = {name: self._pattern([node.kwargs[name] for node in nodes], first) for name in first.kwargs}
        return Unit(first.target, args, kwargs, Count(len(nodes)), first)

    def _operand(self, value: Any) -> Operand:
        """Write an argument of one call."""
        if isinstance(value, Node):
            unit, number = self._places[value]
            return Result(unit) if number is None else Member(unit, Count(number), 0)
        if isinstance(value, int) and not isinstance(value, bool):
            return Count(value)
        if isinstance(value, (list, tuple)):
            return Listed(tuple(self._items(value)))
        return Constant(value)

    def _items(self, values: Sequence[Any]) -> list[Operand | Run]:
        """Write a list, in which members of one family in a row are a run."""
        items: list[Operand | Run] = []
        rest = list(values)
        while rest:
            length, step = self._run_length(rest)
            if length < _SHORTEST_RUN:
                items.append(self._operand(rest.pop(0)))
                continue
            unit, number = self._places[rest[0]]
            items.append(Run(unit, Count(int(number or 0)), step, Count(length)))
            del rest[:length]
        return items

    def _run_length(self, values: Sequence[Any]) -> tuple[int, int]:
        """Return how many members of one family stand at the start, and the step from one to the next."""
        places = [self._places[value] if isinstance(value, Node) else (None, None) for value in values]
        unit, first = places[0]
        if first is None or len(places) == 1 or places[1][0] != unit:
            return 1, 1
        step = int(places[1][1] or 0) - first
        if step not in (1, -1):
            return 1, 1
        length = next((i for i, place in enumerate(places) if place != (unit, first + step * i)), len(places))
        return length, step

    def _pattern(self, values: Sequence[Any], first: Node) -> Operand:
        """Write an argument of all members of a family as one rule."""
        rule = self._rule(values)
        if rule is None and len(values) > 2:
            rest = self._rule(values[1:])
            if isinstance(rest, Member):
                moved = Member(rest.unit, Count(rest.first.base - rest.step), rest.step)
                rule = Starting(self._operand(values[0]), moved)
            elif isinstance(values[0], (list, tuple)):
                lists = [value for value in values if isinstance(value, (list, tuple)) and len(value) == len(values[0])]
                if len(lists) == len(values):
                    rule = Listed(tuple(self._pattern(column, first) for column in zip(*lists, strict=True)))
        if rule is None:
            raise UnknownLoop(f"an argument of {first.target} follows no rule over the timesteps{at_line(first)}")
        return rule

    def _rule(self, values: Sequence[Any]) -> Operand | None:
        """Return the rule of values that all follow it."""
        if all(isinstance(value, Node) for value in values):
            places = [self._places[value] for value in values]
            numbers = _affine([number for _, number in places])
            if len({unit for unit, _ in places}) > 1 or (numbers is None and any(n is not None for _, n in places)):
                return None
            unit = places[0][0]
            return Result(unit) if numbers is None else Member(unit, Count(numbers[0]), numbers[1])
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            numbers = _affine(values)
            if numbers is None:
                return None
            return Counting(Count(numbers[0]), numbers[1]) if numbers[1] else Count(numbers[0])
        constant = not isinstance(values[0], Node) and all(
            type(v) is type(values[0]) and v == values[0] for v in values
        )
        return self._operand(values[0]) if constant else None


def _split(nodes: Sequence[Node], calls: int, loops: int | None) -> list[list[Node]]:
    """Split `calls` for each timestep into families: of one loop in turn, loop after loop. None: each has its own."""
    count = calls if loops is None else loops if calls % loops == 0 else 1
    length, left = divmod(len(nodes), count)
    if left and count > 1:
        raise UnknownLoop(
            f"the number of calls of {nodes[0].target} does not follow from the timesteps{at_line(nodes[0])}"
        )
    parts = [nodes[start : start + length] for start in range(0, len(nodes), length)] if count > 1 else [nodes]
    return [list(part[start :: calls // count]) for part in parts for start in range(calls // count)]


def _affine(numbers: Sequence[int | None]) -> tuple[int, int] | None:
    """Return the first number and the step of numbers that go up or down evenly.

    >>> _affine([4, 3, 2])
    (4, -1)
    """
    known = [number for number in numbers if number is not None]
    if len(known) != len(numbers):
        return None
    step = known[1] - known[0] if len(known) > 1 else 0
    return (known[0], step) if known == [known[0] + step * k for k in range(len(known))] else None
