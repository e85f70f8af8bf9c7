"""Comparison of calls in alternating rounds.

A moment in which the machine is busy affects all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...handlers.runtime.cost_samples import Slice, cost_ms
from ...handlers.runtime.measurement import METERS, Call, Meters, time_slice

KeyT = TypeVar("KeyT")

_SLICE_MS = 1.5
"""Milliseconds of timed calls in a turn, at least one call: enough to read how long threads have waited."""
_MAX_RATIO = 1.1
"""Largest ratio of a call's time in a round to its cost, for the call to count as undisturbed."""
_MIN_ROUNDS = 2
"""Undisturbed rounds that are needed."""
_MAX_DISTURBED_SHARE = 0.1
"""Largest share of a round's time that disturbed calls may take together, since the sums decide.

Some programs take one of two times on a quiet machine, depending on the cores that their threads got.
"""


@dataclass(frozen=True)
class Measured(Generic[KeyT]):
    """Milliseconds of each call: of the shortest one whose threads had their cores."""

    milliseconds: Mapping[KeyT, float]
    undisturbed: bool
    """Whether in two rounds threads had their cores and calls took about these times.

    False: other work on the machine may have decided.
    """


def measure_alternating(
    calls: Mapping[KeyT, Call], budget_ms: float = 10.0, limit_ms: float = 2000.0, meters: Meters = METERS
) -> Measured[KeyT]:
    """Measure the milliseconds of each call.

    Every call takes its turn in each round. A turn begins with an untimed call, which finds the threads of the call
    before still waiting for work, and caches without its weights. Every other round is in reverse order. Rounds end
    when every call has been timed for `budget_ms`, and in two of the rounds almost all calls had their cores and took
    about their shortest time: then no engine was measured on a quieter machine than another one. They also end after
    `limit_ms` in all.
    """
    rounds: list[dict[KeyT, Slice]] = []
    order = list(calls)
    began = meters.clock()
    while not (enough := _is_enough(rounds, budget_ms)):
        if len(rounds) >= _MIN_ROUNDS and 1000 * (meters.clock() - began) >= limit_ms:
            break
        rounds.append({key: _take_turn(calls[key], meters) for key in order})
        order.reverse()
    return Measured(_costs(rounds), enough)


def _take_turn(call: Call, meters: Meters) -> Slice:
    call()
    return time_slice(call, _SLICE_MS, meters)


def _costs(rounds: Sequence[Mapping[KeyT, Slice]]) -> dict[KeyT, float]:
    return {key: cost_ms([taken[key] for taken in rounds]) for key in rounds[0]}


def _is_enough(rounds: Sequence[Mapping[KeyT, Slice]], budget_ms: float) -> bool:
    if not rounds or any(sum(taken[key].wall_ms for taken in rounds) < budget_ms for key in rounds[0]):
        return False
    costs = _costs(rounds)
    most = _MAX_DISTURBED_SHARE * sum(costs.values())
    undisturbed = [taken for taken in rounds if _disturbed_ms(taken, costs) <= most]
    return len(undisturbed) >= _MIN_ROUNDS


def _disturbed_ms(taken: Mapping[KeyT, Slice], costs: Mapping[KeyT, float]) -> float:
    """The costs of the calls that waited for cores in this round, or took longer."""
    return sum(
        ms for key, ms in costs.items() if not taken[key].is_undisturbed or taken[key].shortest_ms > _MAX_RATIO * ms
    )
