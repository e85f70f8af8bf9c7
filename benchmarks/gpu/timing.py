"""Interleaved times of calls: medians over rounds, in which every contestant takes its turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

WARM_UPS = 5


def host_ms(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call by the host's clock, copies and waits included."""
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(1000 * (time.perf_counter() - began))
    return {name: median(own) for name, own in taken.items()}


def device_ms(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call by CUDA events on the current stream."""
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            end.synchronize()
            taken[name].append(start.elapsed_time(end))
    return {name: median(own) for name, own in taken.items()}
