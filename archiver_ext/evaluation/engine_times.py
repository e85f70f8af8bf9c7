"""Comparison of engines: one batch of each size, in rounds in which the engines take turns.

Other work on the machine only makes a call longer. So the time of a call is its shortest one, and rounds go on until
several calls of each engine took about that time. Medians would not do: where other programs keep the cores busy, the
threads of one engine wait for each other more often than those of another one, in most calls but not in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...bucketing.padding import zeros
from ...handlers.runtime.measurement import Call
from ..torch_threads import on_threads
from .candidate import CandidateResult
from .compared_batches import compared_batches
from .evaluate import EvaluatedEngine, LoadedEngine

_TURN_MS = 1.5
"""Milliseconds of timed calls in a turn, at least one call."""
_AGREEING_TURNS = 5
"""Turns whose shortest calls must take about the same time."""
_AGREEMENT = 1.1
"""Largest ratio of such times."""
_FEWEST_TURNS = 6
"""Turns of each engine before the limit of time ends the rounds."""
_LIMIT_S = 10.0

Turns = Mapping[str, Sequence[float]]
"""Milliseconds of the shortest call in each turn of each engine, for one batch."""


def compare(engines: Sequence[EvaluatedEngine]) -> tuple[CandidateResult, ...]:
    """Replace the planned totals of engines by measured ones, if there are several to compare."""
    results = tuple(engine.result for engine in engines)
    if len(results) == 1:
        return results
    totals = measured_totals(engines)
    return tuple(replace(result, total_ms=totals[result.backend]) for result in results)


def measured_totals(engines: Sequence[EvaluatedEngine]) -> dict[str, float]:
    """Measure one batch of each size; returns the milliseconds of each engine."""
    sizes = len(compared_batches(engines[0].loaded.archive.manifest))
    batches = [
        {engine.result.backend: _batch_call(engine.loaded, index) for engine in engines} for index in range(sizes)
    ]
    return total_ms(time_in_turns(batches))


def total_ms(batches: Sequence[Turns]) -> dict[str, float]:
    """Return the milliseconds of each engine for all batches, each by its shortest call.

    >>> total_ms([{"a": [1.0, 9.0], "b": [2.0, 2.0]}, {"a": [50.0, 3.0], "b": [4.0, 8.0]}])
    {'a': 4.0, 'b': 6.0}
    """
    return {engine: sum(min(turns[engine]) for turns in batches) for engine in batches[0]}


def time_in_turns(
    batches: Sequence[Mapping[str, Call]], clock: Callable[[], float] = time.perf_counter, limit_s: float = _LIMIT_S
) -> list[dict[str, list[float]]]:
    """Time each batch with all engines in turn, every other round in reverse order.

    A batch is in the next round until its times are settled for every engine. After `limit_s`, rounds end as soon as
    each engine had a few turns.
    """
    taken: list[dict[str, list[float]]] = [{engine: [] for engine in calls} for calls in batches]
    began, is_reversed = clock(), False
    while pending := [index for index, turns in enumerate(taken) if not _is_enough(turns, clock() - began >= limit_s)]:
        for index in pending:
            engines = list(batches[index])
            for engine in reversed(engines) if is_reversed else engines:
                taken[index][engine].append(_take_turn(batches[index][engine], clock))
        is_reversed = not is_reversed
    return taken


def _is_enough(turns: Turns, is_late: bool) -> bool:
    return all(_is_settled(times) or (is_late and len(times) >= _FEWEST_TURNS) for times in turns.values())


def _is_settled(times: Sequence[float]) -> bool:
    """Whether several turns agree about the shortest time.

    >>> _is_settled([1.0, 8.0, 1.05, 1.02, 1.06]), _is_settled([1.0, 8.0, 1.05, 1.02, 1.06, 1.03])
    (False, True)
    """
    shortest = sorted(times)[:_AGREEING_TURNS]
    return len(shortest) == _AGREEING_TURNS and shortest[-1] <= _AGREEMENT * shortest[0]


def _take_turn(call: Call, clock: Callable[[], float]) -> float:
    """Return the milliseconds of the shortest of some calls.

    They follow an untimed one, which finds the threads of the engine before still waiting for work, and caches without
    its weights.
    """
    call()
    calls: list[float] = []
    while sum(calls) < _TURN_MS:
        started = clock()
        call()
        calls.append(1000 * (clock() - started))
    return min(calls)


def _batch_call(loaded: LoadedEngine, index: int) -> Call:
    """One batch as it is planned; its measured time differs from the sum of its plan."""
    archive = loaded.archive
    lengths = compared_batches(archive.manifest)[index]
    requests = [[zeros(spec, length) for spec in archive.manifest.inputs] for length in lengths]
    call = partial(archive.run_plan, archive.plan(lengths), requests, lengths)
    return on_threads(loaded.torch_threads, call)
