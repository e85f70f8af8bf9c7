"""Several calls timed on one machine in turns, so that a slow moment of it falls on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from statistics import median
from typing import ParamSpec, TypeVar

import torch

ArgumentsP = ParamSpec("ArgumentsP")
ResultT = TypeVar("ResultT")
KeyT = TypeVar("KeyT")
Call = Callable[[], object]


@dataclass(frozen=True)
class TimingConfig:
    """How long each call has its turn."""

    rounds: int = 11
    slice_s: float = 0.06
    """Seconds of timed calls in one turn; at least one is timed."""
    pause_s: float = 0.03
    """Seconds before a turn: the threads of the one before stop waiting busily, and leave the cores to this one."""


def time_interleaved(
    calls: Mapping[KeyT, Call],
    pace: TimingConfig,
    clock: Callable[[], float] = time.perf_counter,
    rest: Callable[[float], None] = time.sleep,
) -> dict[KeyT, tuple[float, ...]]:
    """The seconds of one call of each: for every round the median of that turn.

    A turn begins with a call that is not timed, which wakes the threads. Every round begins with another call, so that
    none always follows the same one.
    """
    order = list(calls)
    seconds: dict[KeyT, list[float]] = {key: [] for key in order}
    for number in range(pace.rounds):
        first = number % len(order)
        for key in order[first:] + order[:first]:
            rest(pace.pause_s)
            seconds[key].append(_one_turn(calls[key], pace.slice_s, clock))
    return {key: tuple(taken) for key, taken in seconds.items()}


def on_threads(threads: int, call: Callable[ArgumentsP, ResultT]) -> Callable[ArgumentsP, ResultT]:
    """The call with so many threads of torch's own.

    The number is the whole process's, and loading an engine that brings its own threads sets it to 1: who takes turns
    with such an engine must set it back.
    """

    @wraps(call)
    def calling(*args: ArgumentsP.args, **options: ArgumentsP.kwargs) -> ResultT:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return call(*args, **options)

    return calling


def _one_turn(call: Call, budget_s: float, clock: Callable[[], float]) -> float:
    call()
    taken: list[float] = []
    while sum(taken) < budget_s:
        began = clock()
        call()
        taken.append(clock() - began)
    return median(taken)
