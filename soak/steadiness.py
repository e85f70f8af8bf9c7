"""The judgement whether a process stays as it was: medians at both ends of a run, after its warm-up.

Medians of windows, because a reading may fall into a batch, a garbage collection or an open of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from .readings import Reading
from .standing import Standing

WARM_UP_SECONDS = 300.0
"""The longest warm-up; that of a shorter run is half of it.

Within it the session store starts its thread of checkpoints, and sessions whose client hung up expire."""
LEAST_READINGS = 5
"""Readings that a window needs."""
MEMORY_PERCENT = 2.0
"""The largest growth of memory.

Over the 30 minutes of a full run, a leak of 0.1 % a minute exceeds it.
"""
DESCRIPTORS = THREADS = 1
"""The largest difference of open descriptors, and of threads.

A library may open a file or start a thread at its first use, which may be late; more than one is a leak.
"""
_WINDOWS = 10
"""Windows of the judged time, of which the first and the last are compared."""


class Ends(NamedTuple):
    """The median of a figure in the first and the last window of the judged readings."""

    first: float
    last: float

    @property
    def growth_percent(self) -> float:
        """The growth in percent of the first; not-a-number if that is 0."""
        return 100 * (self.last - self.first) / self.first if self.first else float("nan")

    @property
    def difference(self) -> float:
        """The difference of the ends, in either direction, 0 or more."""
        return abs(self.last - self.first)


def warm_up_seconds(total_seconds: float) -> float:
    """The seconds of a run that are not judged.

    >>> warm_up_seconds(1800), warm_up_seconds(60), warm_up_seconds(7200)
    (300.0, 30.0, 300.0)
    """
    return min(WARM_UP_SECONDS, total_seconds / 2)


def ends(readings: Sequence[Reading], total_seconds: float, figure: Callable[[Reading], float]) -> Ends:
    """Return both ends of a figure; not-a-number where the readings are too few, or cease before the end."""
    after = warm_up_seconds(total_seconds)
    width = (total_seconds - after) / _WINDOWS
    first = [figure(one) for one in readings if after <= one.seconds < after + width]
    last = [figure(one) for one in readings if total_seconds - width <= one.seconds <= total_seconds]
    return Ends(_median(first), _median(last))


def _median(values: Sequence[float]) -> float:
    return median(values) if len(values) >= LEAST_READINGS else float("nan")


def process_standings(name: str, readings: Sequence[Reading], total_seconds: float) -> list[Standing]:
    """The standings of one worker, from its readings over a run of `total_seconds`."""
    memory = ends(readings, total_seconds, lambda one: one.resident)
    descriptors = ends(readings, total_seconds, lambda one: one.descriptors)
    threads = ends(readings, total_seconds, lambda one: one.threads)
    return [
        Standing(f"{name}: growth of memory, percent", memory.growth_percent, MEMORY_PERCENT, 0.5, "less"),
        Standing(f"{name}: difference of open descriptors", descriptors.difference, DESCRIPTORS, 0, "less"),
        Standing(f"{name}: difference of threads", threads.difference, THREADS, 0, "less"),
    ]
