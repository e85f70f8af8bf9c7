"""The staircase: a batch of a `chunk` model, cut in time where it shrinks, each step one call of the rows still alive.

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

from .cost import CostModel
from .grid import AnyShape, Bucket
from .order import longest_first
from .plan import Plan, Run
from .weight import Weighed, weigh_lines


@dataclass(frozen=True)
class FreeStaircase:
    """Plans staircases for an engine that takes any shape within limits. Built once.

    A batch of more rows than the engine takes is cut, longest first, into stretches of as many rows as it takes; each
    has a staircase of its own. The plan is the cheapest of those whose stairs end where a row does, by the `line` of
    the cost model; of equal ones it computes the fewest timesteps.

    >>> shape = AnyShape(batch=4, length=512)
    >>> for run in FreeStaircase(shape, CostModel.proportional(shape)).plan([90, 300, 80, 310]).runs:
    ...     print(run)
    Run(bucket=Bucket(batch=4, length=90), rows=(3, 1, 0, 2), start=0)
    Run(bucket=Bucket(batch=2, length=220), rows=(3, 1), start=90)
    """

    shape: AnyShape
    cost: CostModel
    _weights: tuple[Weighed, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_weights", weigh_lines(self.cost, self.shape.batch))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest staircases for requests of these lengths.

        Raises:
            SequenceTooLong: a length beyond the limit.
            ValueError: a length below 1.
        """
        rows = longest_first(lengths)
        if not rows:
            return Plan(())
        self.shape.fit_length(lengths[rows[0]])
        runs: list[Run] = []
        heads: list[Run] = []
        for first in range(0, len(rows), self.shape.batch):
            stretch = tuple(rows[first : first + self.shape.batch])
            runs += _stairs(stretch, [lengths[row] for row in stretch], self._weights)
            heads.append(Run(Bucket(len(stretch), 1), stretch))
        return Plan(tuple(runs), tuple(heads))


def _stairs(rows: tuple[int, ...], lengths: list[int], weights: Sequence[Weighed]) -> list[Run]:
    """The cheapest staircase of rows that one call can take, the longest first."""
    ends: list[int] = []  # the lengths, each once, the longest first
    alive: list[int] = []  # alive[k]: the rows that reach ends[k]
    for count, length in enumerate(lengths):
        if not ends or length != ends[-1]:
            ends.append(length)
            alive.append(count + 1)
        else:
            alive[-1] = count + 1
    choices = _cuts(ends, alive, weights)
    runs = []
    start, place = 0, len(ends)
    while place > 0:
        count = alive[place - 1]
        place = choices[place - 1]
        runs.append(Run(Bucket(count, ends[place] - start), rows[:count], start))
        start = ends[place]
    return runs


def _cuts(ends: list[int], alive: list[int], weights: Sequence[Weighed]) -> list[int]:
    """For the stair that begins where ends[k + 1] is (at 0 for the last k): which of the ends up to k it goes to."""
    lines = [(ends[0], 0)]  # u, f(u)
    places = [0]
    lowest_from = [-1]  # lines[i] is the lowest for the whole numbers from lowest_from[i] to lowest_from[i + 1] - 1
    choices = []
    last = len(ends) - 1
    for place, count in enumerate(alive):
        call, step = weights[count]
        chosen = bisect_right(lowest_from, step) - 1
        end, rest = lines[chosen]
        choices.append(places[chosen])
        if place == last:
            break
        start = ends[place + 1]
        best = call + (end - start) * step + rest
        while True:
            above_end, above_rest = lines[-1]
            lower_from = (best - above_rest) // (above_end - start) + 1
            if lower_from > lowest_from[-1] or len(lines) == 1:
                break
            del lines[-1], places[-1], lowest_from[-1]
        lines.append((start, best))
        places.append(place + 1)
        lowest_from.append(lower_from)
    return choices
