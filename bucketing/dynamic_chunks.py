"""The staircase: a batch of a `chunk` model, cut in time where it shrinks, each stair one call of the rows still alive.

The rows stand longest first, so those alive at any time are the first ones. The cheapest calls from time t on cost

    f(t) = min over the lengths u > t of  call[r] + (u - t) * step[r] + f(u),    r = the rows alive at t

and for a given t that is the lowest, at s = step[r], of the lines u * s + f(u). The lower envelope of these lines grows
by one line for each length, from the longest down, and is asked by bisection: O(lengths * log(lengths)) steps for the
exact optimum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .cost import CostModel, IntegerCost, integer_costs
from .plan import Plan, ProgramCall, longest_first
from .shapes import Bucket, DynamicShape

_GAIN = 0.05  # what a smaller stretch must save a step to be tried: measurements differ by less


@dataclass(frozen=True)
class DynamicChunkPlanner:
    """Plans staircases for an engine that takes any shape within limits. Built once.

    A batch of more rows than the engine takes is cut, longest first, into stretches of as many rows as it takes; each
    has a staircase of its own. Where the measured costs of many rows are so high that a step of two or more smaller
    calls is cheaper, stretches of that size are tried for the whole batch too.

    The plan is the cheapest of those whose stairs end where a row does, by the `line` of the cost model; of equal ones
    it computes the fewest timesteps.

    >>> shape = DynamicShape(batch=4, length=512)
    >>> for run in DynamicChunkPlanner(shape, CostModel.proportional(shape)).plan([90, 300, 80, 310]).runs:
    ...     print(run)
    ProgramCall(bucket=Bucket(batch=4, length=90), rows=(3, 1, 0, 2), start=0)
    ProgramCall(bucket=Bucket(batch=2, length=220), rows=(3, 1), start=90)
    """

    shape: DynamicShape
    cost: CostModel
    _weights: tuple[IntegerCost, ...] = field(init=False, repr=False, compare=False)
    segment_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The numbers of rows into which a batch may be cut, the largest first."""

    def __post_init__(self) -> None:
        weights = integer_costs(self.cost, self.shape.batch)
        object.__setattr__(self, "_weights", weights)
        object.__setattr__(self, "segment_sizes", _stretch_sizes(weights, self.cost.batches))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest staircases for requests of these lengths.

        Raises:
            SequenceTooLong: a length beyond the limit.
            ValueError: a length below 1.
        """
        rows = tuple(longest_first(lengths))
        if not rows:
            return Plan(())
        self.shape.bucket_length_for(lengths[rows[0]])
        own = [lengths[row] for row in rows]
        largest, *smaller = self.segment_sizes
        stairs = self._stairs(own, largest)
        for size in smaller:
            if size < len(rows):
                stairs = min(stairs, self._stairs(own, size), key=_weight)
        runs: list[ProgramCall] = []
        for stair in stairs:
            runs += stair.runs(rows)
        return Plan(tuple(runs), tuple(self._heads(rows)))

    def _stairs(self, lengths: list[int], size: int) -> list[_Stairs]:
        return [_cut(lengths, first, first + size, self._weights) for first in range(0, len(lengths), size)]

    def _heads(self, rows: tuple[int, ...]) -> list[ProgramCall]:
        groups = (rows[first : first + self.shape.batch] for first in range(0, len(rows), self.shape.batch))
        return [ProgramCall(Bucket(len(group), 1), group) for group in groups]


class _Stairs(NamedTuple):
    """The cheapest staircase of one stretch of rows."""

    first: int
    """The place of its first row."""
    ends: list[int]
    """Its lengths, each once, the longest first."""
    alive: list[int]
    """alive[k]: the rows that reach ends[k]."""
    choices: list[int]
    """choices[k]: to which of the ends the stair goes that begins at ends[k + 1], or at 0 for the last."""
    weight: int

    def runs(self, rows: tuple[int, ...]) -> list[ProgramCall]:
        """Its calls, from the first timestep on."""
        runs = []
        start, place = 0, len(self.ends)
        while place > 0:
            count = self.alive[place - 1]
            place = self.choices[place - 1]
            end = self.ends[place]
            runs.append(ProgramCall(Bucket(count, end - start), rows[self.first : self.first + count], start))
            start = end
        return runs


def _cut(lengths: list[int], first: int, beyond: int, weights: Sequence[IntegerCost]) -> _Stairs:
    """The cheapest staircase of the rows from `first` to before `beyond`, which one call can take."""
    ends: list[int] = []
    alive: list[int] = []
    for count, length in enumerate(lengths[first:beyond], start=1):
        if ends and length == ends[-1]:
            alive[-1] = count
        else:
            ends.append(length)
            alive.append(count)
    choices, weight = _choose(ends, alive, weights)
    return _Stairs(first, ends, alive, choices, weight)


def _choose(ends: list[int], alive: list[int], weights: Sequence[IntegerCost]) -> tuple[list[int], int]:
    """`_Stairs.choices`, and the weight from time 0 on."""
    lines = [(ends[0], 0)]  # u, f(u)
    places = [0]
    lowest_from = [-1]  # lines[i] is the lowest for the whole numbers from lowest_from[i] to lowest_from[i + 1] - 1
    choices = []
    best = 0
    for place, (count, start) in enumerate(zip(alive, [*ends[1:], 0], strict=True), start=1):
        call, step = weights[count]
        chosen = bisect_right(lowest_from, step) - 1
        end, rest = lines[chosen]
        choices.append(places[chosen])
        best = call + (end - start) * step + rest
        while True:
            above_end, above_rest = lines[-1]
            lower_from = (best - above_rest) // (above_end - start) + 1
            if lower_from > lowest_from[-1] or len(lines) == 1:
                break
            del lines[-1], places[-1], lowest_from[-1]
        lines.append((start, best))
        places.append(place)
        lowest_from.append(lower_from)
    return choices, best


def _weight(stairs: list[_Stairs]) -> int:
    return sum(stair.weight for stair in stairs)


def _stretch_sizes(weights: Sequence[IntegerCost], measured: Sequence[int]) -> tuple[int, ...]:
    """The most rows there can be, and each measured number of which two or more calls step faster than a larger one."""
    most = len(weights) - 1
    rows = [count for count in measured if count < most]
    paying = [
        size
        for size in rows
        if any(
            _in_stretches(weights, more, size) < (1 - _GAIN) * weights[more].step
            for more in (*rows, most)
            if more > size
        )
    ]
    return (most, *reversed(paying))


def _in_stretches(weights: Sequence[IntegerCost], rows: int, size: int) -> int:
    whole, rest = divmod(rows, size)
    return whole * weights[size].step + weights[rest].step
