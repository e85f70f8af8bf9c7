"""Milliseconds of every variant, as the planner will reckon with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

Key = TypeVar("Key")
Call = Callable[[], object]

_WARM_UPS = 2
_FEWEST = 3


def measure(
    calls: Mapping[Key, Call], budget_ms: float = 60.0, clock: Callable[[], float] = time.perf_counter
) -> dict[Key, float]:
    """The median milliseconds of each call, given about `budget_ms` each and at least three runs.

    The calls take turns, so that a slow moment of the machine falls on all of them and not on one.
    """
    for call in calls.values():
        for _ in range(_WARM_UPS):
            call()
    samples: dict[Key, list[float]] = {key: [] for key in calls}
    while pending := [key for key, taken in samples.items() if len(taken) < _FEWEST or sum(taken) < budget_ms]:
        for key in pending:
            samples[key].append(_milliseconds(calls[key], clock))
    return {key: median(taken) for key, taken in samples.items()}


def _milliseconds(call: Call, clock: Callable[[], float]) -> float:
    started = clock()
    call()
    return 1000 * (clock() - started)
