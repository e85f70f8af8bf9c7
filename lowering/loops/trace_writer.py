"""One trace as units: the arguments of each family of calls follow one rule over the timesteps.

A family has calls of one call site: of one operator at the same lines with the same weights.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import UnknownLoop, at_line
from .recipe import Constant, Count, Counting, Listed, Member, NotALoop, Operand, Recipe, Result, Run, Starting, Unit
from .unrolled import IS_USER_INPUT, LISTS

CallSite = tuple[str, str, str, tuple[str, ...]]
"""Operator, number of the result, lines of Python, and weights."""
_HAS_FIXED_PARTS = "has_fixed_parts"


def mark_fixed_parts(short: Graph, long: Graph) -> None:
    """Mark the calls that split a tensor into as many parts in both traces, such as the gates of a cell."""
    splits = [[node for node in graph.nodes if node.target in LISTS] for graph in (short, long)]
    few, many = ({(_place_of_split(node), len(node.meta["val"])) for node in nodes} for nodes in splits)
    growing = {place for place, _ in few ^ many}
    for node in (*splits[0], *splits[1]):
        node.meta[_HAS_FIXED_PARTS] = _place_of_split(node) not in growing


def _place_of_split(node: Node) -> tuple[object, ...]:
    """Return the line of a split, with its operator and dimension: the gates may be split where steps are read."""
    dim = node.args[1 if node.target is torch.ops.aten.unbind.int else 2 :]
    return node.meta.get("stack_trace"), node.target, dim


def _is_list_of_timesteps(node: Node) -> bool:
    return node.target in LISTS and not node.meta.get(_HAS_FIXED_PARTS)


def calls_by_site(graph: Graph) -> dict[CallSite, list[Node]]:
    """Group the calls of a trace by their call site, in order."""
    groups: dict[CallSite, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            groups.setdefault(call_site(node), []).append(node)
    return groups


def call_site(node: Node) -> CallSite:
    """Return what the calls of one place in a loop share: operator, lines of Python, and weights.

    The result of a call with several has another call site than its others, unless there is one for each timestep. It
    has the weights of that call: layers at the same lines are told apart by them.
    """
    source = node.args[0] if node.args else None
    number, called = "", node
    if node.target is operator.getitem and isinstance(source, Node) and not _is_list_of_timesteps(source):
        number, called = str(node.args[1]), source
    weights = (argument for argument in called.all_input_nodes if argument.op == "placeholder")
    names = tuple(argument.name for argument in weights if IS_USER_INPUT not in argument.meta)
    return str(node.target), number, str(node.meta.get("stack_trace")), names


def calls_per_step(short: Graph, long: Graph, steps: int) -> dict[CallSite, int]:
    """Return how many calls of a place each further timestep adds, for those that grow.

    Raises `NotALoop`: no place has a call for each timestep.
    Raises `UnknownLoop`: some have, and another place has another number of calls.
    """
    groups = calls_by_site(short), calls_by_site(long)
    found: dict[CallSite, int] = {}
    irregular: list[Node] = []
    for key in dict.fromkeys([*groups[0], *groups[1]]):
        few, many = (len(group.get(key, ())) for group in groups)
        if few == many:
            continue
        calls = (many - few) // steps
        # the last call of a place is missing if nothing reads it
        if calls > 0 and calls * steps == many - few and few % calls == many % calls:
            found[key] = calls
        else:
            irregular.append((groups[1].get(key) or groups[0][key])[0])
    if not found:
        raise NotALoop
    if irregular:
        first = irregular[0]
        raise UnknownLoop(f"the number of calls of {first.target} does not follow from the timesteps{at_line(first)}")
    return found


def lists_of_timesteps(short: Graph, long: Graph, per_step: Mapping[CallSite, int]) -> set[CallSite]:
    """Return places whose calls read several lists of timesteps, as `zip(x.unbind(1), y.unbind(1))` does."""
    groups = calls_by_site(short), calls_by_site(long)
    several = {key: calls for key, calls in per_step.items() if calls > 1}
    return {key for key, calls in several.items() if all(len(by_list(g.get(key, ()))) == calls for g in groups)}


def by_list(nodes: Sequence[Node]) -> list[list[Node]]:
    """Group the reads of lists of timesteps by the list."""
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        source = node.args[0]
        if node.target is operator.getitem and isinstance(source, Node) and _is_list_of_timesteps(source):
            found.setdefault(source, []).append(node)
    return list(found.values())


@dataclass(frozen=True)
class Frames:
    """A dimension with another number of steps than the timesteps: that of both traces."""

    name: str
    dim: int
    sizes: tuple[int, int]


def find_frames(short: Graph, long: Graph, timesteps: tuple[int, int]) -> list[Frames]:
    """Return sizes before the first loop that grow otherwise than the timesteps, as after a stride."""
    found: dict[tuple[int, int], Frames] = {}
    counts = [{key: len(nodes) for key, nodes in calls_by_site(graph).items()} for graph in (short, long)]
    for a, b in zip(short.nodes, long.nodes, strict=False):
        if a.op == "call_function" and counts[0].get(call_site(a)) != counts[1].get(call_site(b)):
            break
        shapes = [getattr(node.meta.get("val"), "shape", ()) for node in (a, b)]
        for dim, (few, many) in enumerate(zip(*shapes, strict=False)):
            if few < many and (few, many) != timesteps:
                found.setdefault((few, many), Frames(a.name, dim, (few, many)))
    return list(found.values())


_SHORTEST_RUN = 3
"""Members of a family in a list that are assumed to be all of a loop."""


class TraceWriter:
    """Writes one trace as units."""

    def __init__(
        self, graph: Graph, per_step: Mapping[CallSite, int], loops: int | None, lists: Collection[CallSite]
    ) -> None:
        self._graph = graph
        order = {node: index for index, node in enumerate(graph.nodes)}
        growing = [(key, nodes) for key, nodes in calls_by_site(graph).items() if key in per_step]
        parts = [by_list(nodes) if key in lists else _split(nodes, per_step[key], loops) for key, nodes in growing]
        families = [family for part in parts for family in part]
        members = {node for family in families for node in family}
        units = [(family, True) for family in families]
        units += [([node], False) for node in graph.nodes if node not in members and node.op != "output"]
        self._units = sorted(units, key=lambda unit: order[unit[0][0]])
        self._places = {
            node: (index, number if family else None)
            for index, (nodes, family) in enumerate(self._units)
            for number, node in enumerate(nodes)
        }

    def recipe(self, frames: Frames | None) -> Recipe:
        """Return the units. Raises `UnknownLoop`: the arguments of a family follow no rule."""
        units = tuple(self._family(nodes) if family else self._single(nodes[0]) for nodes, family in self._units)
        names = {nodes[0].name: index for index, (nodes, _) in enumerate(self._units)}
        place = None if frames is None else (names[frames.name], frames.dim)
        results: Any = self._graph.output_node().args[0]
        return Recipe(units, tuple(self._operand(value) for value in results), place)

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
            if isinstance(rest := self._rule(values[1:]), Member):
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
            if (numbers := _affine(values)) is None:
                return None
            return Counting(Count(numbers[0]), numbers[1]) if numbers[1] else Count(numbers[0])
        first = values[0]
        constant = not isinstance(first, Node) and all(type(v) is type(first) and v == first for v in values)
        return self._operand(first) if constant else None


def _split(nodes: Sequence[Node], calls: int, loops: int | None) -> list[list[Node]]:
    """Split `calls` for each timestep into families: of one loop in turn, loop after loop. None: each has its own."""
    count = calls if loops is None else loops if calls % loops == 0 else 1
    length, left = divmod(len(nodes), count)
    if left and count > 1:
        first = nodes[0]
        raise UnknownLoop(f"the number of calls of {first.target} does not follow from the timesteps{at_line(first)}")
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
