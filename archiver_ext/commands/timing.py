"""Interleaved timing: a slow moment of the machine affects all of the timed calls, not one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple, TypeVar

from ...handlers.runtime.cost_samples import Slice
from ...handlers.runtime.measurement import METERS, Call, Meters

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_ENOUGH = 3
"""Number of undisturbed slices whose median is reliable."""


@dataclass(frozen=True)
class TimingConfig:
    """Durations of an interleaved timing."""

    rounds: int = 11
    slice_s: float = 0.06
    """Seconds of timed calls in one slice; at least one call is timed."""
    pause_s: float = 0.03
    """Seconds before a slice.

    The threads of the previous call stop spinning, and leave the cores to this one.
    """


class TimedSlice(NamedTuple):
    """Calls of one key in a row."""

    seconds: float
    """Median of the calls."""
    is_undisturbed: bool
    """Whether the threads had the cores that they were ready to run on."""


def time_interleaved(
    calls: Mapping[KeyT, Call],
    config: TimingConfig,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[KeyT, tuple[float, ...]]:
    """Time each call in one slice per round; returns the median seconds of a call in each slice.

    A slice begins with an untimed call, which wakes the threads.
    """
    slices = time_slices(calls, config, Meters(clock, lambda: 0.0), sleep)
    return {key: tuple(one.seconds for one in own) for key, own in slices.items()}


def time_slices(
    calls: Mapping[KeyT, Call],
    config: TimingConfig,
    meters: Meters = METERS,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[KeyT, tuple[TimedSlice, ...]]:
    """Time each call in one slice per round, as `time_interleaved` does, and see whether it had its cores."""

    def time_slice(call: Call) -> TimedSlice:
        sleep(config.pause_s)
        call()
        waited = meters.waited_ms()
        seconds: list[float] = []
        while sum(seconds) < config.slice_s:
            start = meters.clock()
            call()
            seconds.append(meters.clock() - start)
        taken = Slice(1000 * min(seconds), 1000 * sum(seconds), max(0.0, meters.waited_ms() - waited))
        return TimedSlice(median(seconds), taken.is_undisturbed)

    return interleave({key: partial(time_slice, call) for key, call in calls.items()}, config.rounds)


def time_undisturbed(
    calls: Mapping[KeyT, Call],
    config: TimingConfig,
    meters: Meters = METERS,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[dict[KeyT, tuple[float, ...]], list[KeyT]]:
    """Time each call as `time_interleaved` does, and again where it did not have its cores.

    Returns the seconds of the undisturbed slices of each call, and the calls that had too few: all their slices count.
    """
    slices = time_slices(calls, config, meters, sleep)
    again = {key: calls[key] for key, own in slices.items() if not has_enough(own)}
    if again:
        slices |= {key: slices[key] + own for key, own in time_slices(again, config, meters, sleep).items()}
    disturbed = [key for key, own in slices.items() if not has_enough(own)]
    seconds = {
        key: tuple(one.seconds for one in own if one.is_undisturbed or key in disturbed) for key, own in slices.items()
    }
    return seconds, disturbed


def has_enough(slices: Sequence[TimedSlice]) -> bool:
    """Whether the median of the undisturbed slices is reliable: there are three, or all were undisturbed."""
    undisturbed = sum(one.is_undisturbed for one in slices)
    return undisturbed >= min(_ENOUGH, len(slices))


def interleave(measurements: Mapping[KeyT, Callable[[], ValueT]], rounds: int) -> dict[KeyT, tuple[ValueT, ...]]:
    """Take every measurement once per round.

    Each round begins with another one, so that none always follows the same.

    >>> taken = []
    >>> found = interleave({name: lambda name=name: taken.append(name) or 1.0 for name in "abc"}, rounds=2)
    >>> "".join(taken), found["a"]
    ('abcbca', (1.0, 1.0))
    """
    order = list(measurements)
    found: dict[KeyT, list[ValueT]] = {key: [] for key in order}
    for number in range(rounds):
        first = number % len(order)
        for key in order[first:] + order[:first]:
            found[key].append(measurements[key]())
    return {key: tuple(values) for key, values in found.items()}
