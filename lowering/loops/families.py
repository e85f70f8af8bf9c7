"""Recognition of loops: calls at one line, whose arguments follow one rule over the timesteps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from ...config.schema import ServingConfig
from ..errors import LoweringError, UnknownLoop, source_suffix
from ..exporter.export import forward_name
from ..exporter.shape_conditions import TimeBound, timesteps_beyond
from ..exporter.subgraph import holder_of, tensors_by_placeholder
from ..one_request.single_request import SingleExport, example_timesteps, export_request, export_unrolled
from .each_length import LoopCalls
from .evaluate import Evaluation
from .recipe import Count, NotALoop, Recipe
from .size_uses import SizeUses
from .trace_writer import Frames, TraceWriter, calls_per_step, find_frames, lists_of_timesteps, mark_fixed_parts
from .unrolled import simplify

_MOST_LOOPS = 6
"""Numbers of loops at the same lines that are tried."""


def recognise(short: Graph, timesteps: int, long: Graph, more_timesteps: int) -> Recipe:
    """Write two traces of a model, of different numbers of timesteps, as the units on which both agree.

    Raises `NotALoop`: no operator is called once a timestep.
    Raises `UnknownLoop`: the loops follow no rule that both show.
    """
    mark_fixed_parts(short, long)
    refusals: list[UnknownLoop | NotALoop] = []
    counts = _numbers_of_loops(short, long, more_timesteps - timesteps)
    for frames in (None, *find_frames(short, long, (timesteps, more_timesteps))):
        for loops in counts:
            result = _attempt(short, long, (timesteps, more_timesteps), frames, loops)
            if isinstance(result, Recipe):
                return result
            refusals.append(result)
    raise next((result for result in refusals if isinstance(result, UnknownLoop)), NotALoop())


def _attempt(
    short: Graph, long: Graph, timesteps: tuple[int, int], frames: Frames | None, loops: int | None
) -> Recipe | UnknownLoop | NotALoop:
    """Write both traces as units, or return why they do not agree."""
    steps = timesteps if frames is None else frames.sizes
    try:
        per_step = calls_per_step(short, long, steps[1] - steps[0])
        lists = lists_of_timesteps(short, long, per_step)
        few, many = (TraceWriter(graph, per_step, loops, lists).recipe(frames) for graph in (short, long))
        return _agreed(few, many, timesteps, steps)
    except (NotALoop, UnknownLoop) as error:
        return error


def _numbers_of_loops(short: Graph, long: Graph, steps: int) -> list[int | None]:
    """Return how many loops may have run one after the other at the same lines; 1: all calls alternate."""
    try:
        calls = set(calls_per_step(short, long, steps).values())
    except (NotALoop, UnknownLoop):
        calls = set()
    divisors = {loops for number in calls for loops in range(2, number) if number % loops == 0}
    return [1, None, *sorted(divisors)[:_MOST_LOOPS]]


def _agreed(short: Recipe, long: Recipe, timesteps: tuple[int, int], steps: tuple[int, int]) -> Recipe:
    """Return the recipe on which those of two traces agree, with integers that follow from the timesteps."""

    def count(a: Count, b: Count) -> Count:
        slope, left = divmod(b.base - a.base, timesteps[1] - timesteps[0])
        if not left:
            return Count(a.base - slope * timesteps[0], slope)
        slope, left = divmod(b.base - a.base, steps[1] - steps[0])
        if not left:
            return Count(a.base - slope * steps[0], 0, slope)
        raise UnknownLoop(f"a size is {a.base} for {timesteps[0]} timesteps and {b.base} for {timesteps[1]}")

    if len(short.units) != len(long.units):
        raise UnknownLoop("other operators are called for other numbers of timesteps")
    merged: Recipe = _merged(short, long, count)
    return merged


def _merged(a: Any, b: Any, count: Callable[[Count, Count], Count]) -> Any:
    if isinstance(a, Count) and isinstance(b, Count):
        return count(a, b)
    if type(a) is type(b):
        if isinstance(a, tuple) and len(a) == len(b):
            return tuple(_merged(x, y, count) for x, y in zip(a, b, strict=True))
        if isinstance(a, dict) and a.keys() == b.keys():
            return {name: _merged(a[name], b[name], count) for name in a}
        if isinstance(a, Node):
            return a
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            return type(a)(**_merged(vars(a), vars(b), count))
        if a == b:
            return a
    raise UnknownLoop(f"{a} for some timesteps is {b} for others")


_MOST_TIMESTEPS = 12
_FEWEST_TIMESTEPS = 4
"""Fewer would not show a rule."""
_MOST_STEPS = 60_000
"""Steps of all numbers of timesteps together that are run one by one."""
_TIMESTEPS_OF_SESSIONS = 2048
"""Timesteps beyond the buckets that are run for sessions, which have any number of them."""


class NoLoop(LoweringError):
    """A model in which no loop over timesteps was found."""


def export_rolled(model: torch.nn.Module, config: ServingConfig, shortest: int = 1) -> SingleExport:
    """Export forward() for one request, its loops over timesteps as recurrent layers.

    Raises `UnknownLoop`: a loop is of another kind; names the line.
    Raises `NoLoop`: there is none.
    Raises `LoweringError`: the trace with the loops computed at once fails.
    """
    more = max(_FEWEST_TIMESTEPS + 1, min(_MOST_TIMESTEPS, config.longest))
    timesteps = max(_FEWEST_TIMESTEPS, more - 5, shortest)
    if timesteps >= more:
        raise NoLoop(f"a loop is recognised in {_FEWEST_TIMESTEPS + 1} timesteps; the longest bucket is shorter")
    name = forward_name(model)
    short, long = (export_unrolled(model, config, steps) for steps in (timesteps, more))
    try:
        recipe = recognise(simplify(short.exported), timesteps, simplify(long.exported), more)
    except NotALoop as error:
        raise NoLoop(f"{name} has no loop over timesteps") from error
    uses = SizeUses(model, config, (timesteps, more))
    calls = LoopCalls(model, config, (timesteps, more))
    lengths = calls.lengths(config.longest) if not uses.unknown else range(more + 1, config.longest + 1)
    _reject_unknown_branches(name, uses, lengths)
    other = uses.first_other(range(more + 1, config.longest + 1)) or calls.first_other(lengths)
    if other is not None:
        raise UnknownLoop(
            f"{name} does something else at {other.timesteps} timesteps than at {more}{source_suffix(other.line)}: "
            "write code that is the same at each step of a loop, and for every number of them"
        )
    rolled = _export(recipe, long, config, name, shortest)
    bound = None if config.streaming is None else _bound(uses, calls, config.longest)
    compared = frozenset({*range(shortest, min(more, config.longest + 1)), *lengths})
    return replace(rolled, compared=compared, bound=bound or rolled.bound)


def _reject_unknown_branches(name: str, uses: SizeUses, lengths: Iterable[int]) -> None:
    """Refuse a model that may branch on a plain number, unless all its numbers of timesteps are few enough to run.

    Raises `UnknownLoop`: names the line.
    """
    if uses.unknown and sum(lengths) > _MOST_STEPS:
        raise UnknownLoop(
            f"{name} makes a plain number of the number of timesteps{source_suffix(uses.unknown[0])}: which requests "
            "would take another branch is not known. Compare sizes as they are, as in `if x.size(1) > 8`, and take "
            "the last of a list as outputs[-1]"
        )


def _bound(uses: SizeUses, calls: LoopCalls, longest: int) -> TimeBound | None:
    """Return the bound of the timesteps of sessions, if some beyond the longest bucket are not known to hold."""
    if uses.unknown:
        return TimeBound(uses.unknown[0])
    most = max(_TIMESTEPS_OF_SESSIONS, 2 * longest)
    beyond = [length for length in calls.lengths(most) if length > longest]
    other = uses.first_other(timesteps_beyond(uses.branches, longest)) or calls.first_other(beyond)
    return None if other is None else TimeBound(other.line)


def _export(recipe: Recipe, trace: SingleExport, config: ServingConfig, name: str, shortest: int) -> SingleExport:
    """Trace the recipe as if it were the model."""
    exported = trace.exported
    holder = holder_of(exported)
    inputs = [str(name) for name in exported.graph_signature.user_inputs]

    def forward(timesteps: Any, tensors: Sequence[torch.Tensor]) -> Any:
        weights = tensors_by_placeholder(exported, holder)
        return Evaluation(recipe, {**weights, **dict(zip(inputs, tensors, strict=True))}, timesteps).outputs()

    rolled = export_request(holder, forward, config, name, shortest, example_timesteps(config, shortest))
    return replace(rolled, output_tree=trace.output_tree, decided=trace.decided, vocabularies=trace.vocabularies)
