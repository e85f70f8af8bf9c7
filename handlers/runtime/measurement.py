"""Interleaved timing of calls, repeated while their costs are unreliable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from .core_wait import waited_ms
from .cost_samples import CostKey, Slice, contradicting, cost_ms, is_settled

Call = Callable[[], object]
Report = Callable[[int, int, str], None]
"""Function of the number of measured calls, the number of calls, and a description."""


@dataclass(frozen=True)
class Effort:
    """Durations of a measurement."""

    budget_ms: float = 20.0
    """Milliseconds of timed calls of each key."""
    fewest: int = 3
    """Slices of each key."""
    slice_ms: float = 1.5
    """Milliseconds of timed calls in a slice, at least one call.

    Time enough to read how long threads have waited.
    """
    repeated: float = 2.0
    """Most time of repetitions, relative to that of the measurement before them."""
    repeated_ms: float = 1500.0
    """Most milliseconds of repetitions."""
    limit_ms: float = inf
    """Milliseconds after which no slice begins."""


class Meters(NamedTuple):
    """Readings of this process's time."""

    clock: Callable[[], float] = time.perf_counter
    """Seconds."""
    waited_ms: Callable[[], float] = waited_ms
    """Milliseconds that threads have waited for a core."""


METERS = Meters()


def _discard_progress(done: int, total: int, text: str) -> None:
    """Discard the progress."""


def measure(
    calls: Mapping[CostKey, Call],
    effort: Effort = Effort(),
    meters: Meters = METERS,
    report: Report = _discard_progress,
) -> dict[CostKey, list[Slice]]:
    """Time each call in slices that take turns: a slow moment of the machine affects all of them.

    `cost_ms` of the slices is the cost: the minimum, because only other work on the machine makes a call longer, and
    plans compare calls with each other. Medians would be biased if the machine was idle for one call and busy for
    another.

    Then the calls are repeated, for a bounded time, whose slices were disturbed or do not agree, and those whose costs
    contradict each other. A key has no slice if the limit came before it.
    """
    began = meters.clock()

    def elapsed_ms() -> float:
        return 1000 * (meters.clock() - began)

    slices: dict[CostKey, list[Slice]] = {key: [] for key in calls}

    def take(keys: Sequence[CostKey]) -> None:
        for key in keys:
            if elapsed_ms() >= effort.limit_ms:
                return
            if not slices[key]:
                calls[key]()  # the first call is slower
            slices[key].append(time_slice(calls[key], effort.slice_ms, meters))

    while (pending := [key for key, own in slices.items() if _is_short(own, effort)]) and (
        elapsed_ms() < effort.limit_ms
    ):
        take(pending)
        report(len(calls) - len(pending), len(calls), str(pending[-1]))
    until = min(elapsed_ms() + min(effort.repeated * elapsed_ms(), effort.repeated_ms), effort.limit_ms)
    while (doubtful := keys_to_repeat(slices)) and elapsed_ms() < until:
        take(doubtful)
    return slices


def keys_to_repeat(slices: Mapping[CostKey, Sequence[Slice]]) -> list[CostKey]:
    """Choose the keys to measure again.

    Those that are not settled; if all are, those that contradict each other.
    """
    unsettled = [key for key, own in slices.items() if not is_settled(own)]
    if unsettled:
        return unsettled
    found = contradicting({key: cost_ms(own) for key, own in slices.items()})
    return list(dict.fromkeys(key for smaller, larger, _ in found for key in (smaller, larger)))


def time_slice(call: Call, least_ms: float, meters: Meters) -> Slice:
    """Time calls in a row for at least `least_ms`, and measure how long threads waited for cores."""
    waited = meters.waited_ms()
    shortest, wall = inf, 0.0
    while wall < least_ms:
        started = meters.clock()
        call()
        taken = 1000 * (meters.clock() - started)
        shortest, wall = min(shortest, taken), wall + taken
    # A thread that has ended took the time that it had waited with it.
    return Slice(shortest, wall, max(0.0, meters.waited_ms() - waited))


def _is_short(slices: Sequence[Slice], effort: Effort) -> bool:
    return len(slices) < effort.fewest or sum(one.wall_ms for one in slices) < effort.budget_ms
