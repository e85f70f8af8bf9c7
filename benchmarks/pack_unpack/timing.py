"""Interleaved seconds of calls: by the clock on a CPU, and by events on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import median

import torch

from torchserve_neuron_lstm.archiver_ext.commands.timing import interleave

from .contestants import Call

Timer = Callable[[Call], float]
"""A function that returns the seconds of one call."""


@dataclass(frozen=True)
class Effort:
    """Amount of measurement."""

    rounds: int = 11
    """The maximum number of rounds."""
    fewest: int = 3
    budget_s: float = 6.0
    """Seconds for one batch in one pass, unless the smallest number of rounds takes longer."""
    slice_s: float = 0.04
    """Seconds of a slice; short calls are repeated."""

    def rounds_for(self, round_s: float) -> int:
        """Return the number of rounds for rounds of `round_s` seconds.

        >>> Effort().rounds_for(0.1), Effort().rounds_for(1.0), Effort().rounds_for(9.0)
        (11, 6, 3)
        """
        return max(self.fewest, min(self.rounds, int(self.budget_s / round_s)))

    def repeats(self, call_s: float) -> int:
        """The number of calls in one slice.

        >>> Effort().repeats(0.015), Effort().repeats(2.0)
        (3, 1)
        """
        return ceil(self.slice_s / call_s)


FULL = Effort(rounds=20, fewest=20)


def take_turns(calls: Mapping[str, Call], effort: Effort, timer: Timer) -> dict[str, tuple[float, ...]]:
    """Time each call; returns the median seconds of its slice in every round.

    Every call is made twice before the timing: the first one may compile, the second one decides the repetitions.
    """
    for call in calls.values():
        timer(call)
    once = {name: timer(call) for name, call in calls.items()}
    repeats = {name: effort.repeats(taken) for name, taken in once.items()}
    rounds = effort.rounds_for(sum(once[name] * repeats[name] for name in calls))

    def time_slice(name: str) -> float:
        return median(timer(calls[name]) for _ in range(repeats[name]))

    return interleave({name: partial(time_slice, name) for name in calls}, rounds)


def cpu_timer(call: Call) -> float:
    """Seconds of a call by the clock."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cuda_timer(call: Call) -> float:
    """Seconds of a call by events on the GPU, from one idle state to the next."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000
