"""Call sites of a trace: calls of one operator at the same lines with the same weights."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from ..errors import UnknownLoop, at_line
from .recipe import NotALoop
from .unrolled import IS_USER_INPUT

CallSite = tuple[str, str, str, tuple[str, ...]]
"""Operator, number of the result, lines of Python, and weights."""
_SPLITS = (torch.ops.aten.unbind.int, torch.ops.aten.split.Tensor)
_HAS_FIXED_PARTS = "has_fixed_parts"


def mark_fixed_parts(short: Graph, long: Graph) -> None:
    """Mark the calls that split a tensor into as many parts in both traces, such as the gates of a cell."""
    parts: list[dict[object, set[int]]] = []
    splits = [[node for node in graph.nodes if node.target in _SPLITS] for graph in (short, long)]
    for nodes in splits:
        parts.append({})
        for node in nodes:
            parts[-1].setdefault(_place_of_split(node), set()).add(len(node.meta["val"]))
    for node in (*splits[0], *splits[1]):
        place = _place_of_split(node)
        node.meta[_HAS_FIXED_PARTS] = parts[0].get(place) == parts[1].get(place)


def _place_of_split(node: Node) -> tuple[object, ...]:
    """Return the line of a split, with its operator and dimension: the gates may be split where steps are read."""
    dim = node.args[1 if node.target is torch.ops.aten.unbind.int else 2 :]
    return node.meta.get("stack_trace"), node.target, dim


def _is_list_of_timesteps(node: Node) -> bool:
    return node.target in _SPLITS and not node.meta.get(_HAS_FIXED_PARTS)


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
    return {
        key
        for key, calls in per_step.items()
        if calls > 1 and all(len(by_list(group.get(key, ()))) == calls for group in groups)
    }


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
