"""Interleaved timing: a slow moment of the machine affects all of the timed calls, not one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeVar

from ...handlers.runtime.measurement import Call

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


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


def time_interleaved(
    calls: Mapping[KeyT, Call],
    config: TimingConfig,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[KeyT, tuple[float, ...]]:
    """Time each call in one slice per round; returns the median seconds of a call in each slice.

    A slice begins with an untimed call, which wakes the threads.
    """

    def time_slice(call: Call) -> float:
        sleep(config.pause_s)
        call()
        seconds: list[float] = []
        while sum(seconds) < config.slice_s:
            started = clock()
            call()
            seconds.append(clock() - started)
        return median(seconds)

    return interleave({key: partial(time_slice, call) for key, call in calls.items()}, config.rounds)


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
