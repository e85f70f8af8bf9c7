"""Comparison of calls in alternating rounds.

A moment in which the machine is busy affects all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...handlers.runtime.measurement import Call

KeyT = TypeVar("KeyT")

_UNDISTURBED = 1.1
"""Largest ratio of a call's time in a round to its shortest time, for the call to count as undisturbed."""
_ROUNDS = 2
"""Undisturbed rounds that are needed."""
_VARYING = 0.1
"""Share of a round's time; calls that together take less may vary, since the sums decide.

Some programs take one of two times on a quiet machine, depending on the cores that their threads got.
"""


@dataclass(frozen=True)
class Measured(Generic[KeyT]):
    """Minimum milliseconds of each call."""

    milliseconds: Mapping[KeyT, float]
    undisturbed: bool
    """Whether two rounds agreed. False: other work on the machine may have decided."""


def measure_alternating(
    calls: Mapping[KeyT, Call],
    budget_ms: float = 20.0,
    limit_ms: float = 2000.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured[KeyT]:
    """Measure the minimum milliseconds of each call.

    Every call takes its turn in each round, twice in a row: the first of the two finds the threads of the call before
    still waiting for work, and caches without its weights. Every other round is in reverse order. Rounds end when every
    call has taken `budget_ms`, and in two of the rounds almost all calls took about their shortest time: then no engine
    was measured on a quieter machine than another one. They also end after `limit_ms` in all.
    """
    rounds: list[dict[KeyT, float]] = []
    order = list(calls)
    began = clock()
    while not (enough := _is_enough(rounds, budget_ms)):
        if len(rounds) >= _ROUNDS and 1000 * (clock() - began) >= limit_ms:
            break
        rounds.append({key: min(_milliseconds(calls[key], clock) for _ in range(2)) for key in order})
        order.reverse()
    return Measured(_shortest(rounds), enough)


def _shortest(rounds: Sequence[Mapping[KeyT, float]]) -> dict[KeyT, float]:
    return {key: min(taken[key] for taken in rounds) for key in rounds[0]}


def _is_enough(rounds: Sequence[Mapping[KeyT, float]], budget_ms: float) -> bool:
    if not rounds or any(2 * sum(taken[key] for taken in rounds) < budget_ms for key in rounds[0]):
        return False
    shortest = _shortest(rounds)
    most = _VARYING * sum(shortest.values())
    undisturbed = [taken for taken in rounds if _varying_ms(taken, shortest) <= most]
    return len(undisturbed) >= _ROUNDS


def _varying_ms(taken: Mapping[KeyT, float], shortest: Mapping[KeyT, float]) -> float:
    """The shortest times of the calls that took longer in this round."""
    return sum(ms for key, ms in shortest.items() if taken[key] > _UNDISTURBED * ms)


def _milliseconds(call: Call, clock: Callable[[], float]) -> float:
    started = clock()
    call()
    return 1000 * (clock() - started)
