"""Recognition of loops: calls at one line, whose arguments follow one rule over the timesteps."""

from __future__ import annotations

from torch.fx import Graph

from ..errors import UnknownLoop
from .agreement import agreed
from .call_sites import calls_per_step, lists_of_timesteps, mark_fixed_parts
from .frames import Frames, find_frames
from .recipe import NotALoop, Recipe
from .trace_writer import TraceWriter

_MOST_LOOPS = 6
"""Numbers of loops at the same lines that are tried."""


def recognise(short: Graph, timesteps: int, long: Graph, more_timesteps: int) -> Recipe:
    """Write two traces of a model, of different numbers of timesteps, as the units on which both agree.

    Raises:
        NotALoop: no operator is called once a timestep.
        UnknownLoop: the loops follow no rule that both show.
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
        few, many = (TraceWriter(graph, per_step, frames, loops, lists).recipe() for graph in (short, long))
        return agreed(few, many, timesteps, steps)
    except (NotALoop, UnknownLoop) as error:
        return error


def _numbers_of_loops(short: Graph, long: Graph, steps: int) -> list[int | None]:
    """Return how many loops may have run one after the other at the same lines, as for several layers.

    1 is a loop within which all calls alternate.
    """
    try:
        calls = set(calls_per_step(short, long, steps).values())
    except (NotALoop, UnknownLoop):
        calls = set()
    divisors = {loops for number in calls for loops in range(2, number) if number % loops == 0}
    return [1, None, *sorted(divisors)[:_MOST_LOOPS]]
