"""Interleaved times of calls: medians over rounds, in which every contestant takes its turn."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

WARM_UPS = 5
LEAST_ROUNDS = 5
LIMIT_S = 15.0
"""Seconds after which no further round of a case begins: a slow contestant does not take all time."""


def host_ms(calls: Mapping[str, Callable[[], object]], rounds: int, limit_s: float = LIMIT_S) -> dict[str, float]:
    """Return the median milliseconds of each call by the host's clock, copies and waits included."""
    return _medians(calls, rounds, limit_s, _host_ms)


def device_ms(calls: Mapping[str, Callable[[], object]], rounds: int, limit_s: float = LIMIT_S) -> dict[str, float]:
    """Return the median milliseconds of each call by CUDA events on the current stream."""
    return _medians(calls, rounds, limit_s, _device_ms)


def _medians(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    limit_s: float,
    ms_of: Callable[[Callable[[], object]], float],
) -> dict[str, float]:
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)  # the one after a slow contestant finds cold caches
    began = time.perf_counter()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and time.perf_counter() - began > limit_s:
            break
        for name in order.sample([*calls], len(calls)):
            taken[name].append(ms_of(calls[name]))
    return {name: median(own) for name, own in taken.items()}


def _host_ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def _device_ms(call: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
