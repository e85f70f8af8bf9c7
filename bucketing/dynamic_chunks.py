"""Chunked plans for dynamic shapes: time is cut where rows end, a chunk is a call of the active rows.

Rows are sorted longest first, so those active at any time are the first ones. The cheapest calls from time t on cost

    f(t) = min over the lengths u > t of  call[r] + (u - t) * step[r] + f(u),    r = the rows active at t

and for a given t that is the lowest, at s = step[r], of the lines u * s + f(u). The lower envelope of these lines grows
by one line for each length, from the longest down, and is evaluated by bisection: O(lengths * log(lengths)) steps for
the exact optimum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .cost import CostModel, IntegerCost, integer_costs
from .plan import Plan, ProgramCall, longest_first
from .shapes import Bucket, DynamicShape

_MIN_GAIN = 0.05  # a smaller row group is tried if a step of it costs this much less: measurements differ by less


class DynamicChunkPlanner:
    """Planner of chunked execution for an engine that takes any shape within limits. Built once.

    A batch of more rows than the engine takes is cut, longest first, into row groups of as many rows as it takes; each
    has separate chunks. If the measured costs of many rows are so high that a step of two or more smaller calls is
    cheaper, row groups of that size are tried for the whole batch too.

    The plan is the cheapest of those whose chunks end where a row does, by the `line` of the cost model; of equal ones
    it computes the fewest timesteps.

    >>> shape = DynamicShape(batch=4, length=512)
    >>> for call in DynamicChunkPlanner(shape, CostModel.proportional(shape)).plan([90, 300, 80, 310]).calls:
    ...     print(call)
    ProgramCall(bucket=Bucket(batch=4, length=90), rows=(3, 1, 0, 2), start=0)
    ProgramCall(bucket=Bucket(batch=2, length=220), rows=(3, 1), start=90)
    """

    def __init__(self, shape: DynamicShape, cost: CostModel) -> None:
        self.shape, self.cost = shape, cost
        self._costs = integer_costs(cost, shape.batch)
        self.group_sizes = _group_sizes(self._costs, cost.batches)
        """Numbers of rows into which a batch may be cut, the largest first."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the cheapest chunked plan for requests of these lengths."""
        rows = tuple(longest_first(lengths))
        if not rows:
            return Plan(())
        self.shape.bucket_length_for(lengths[rows[0]])
        own = [lengths[row] for row in rows]
        largest, *smaller = self.group_sizes
        sizes = [largest, *[size for size in smaller if size < len(rows)]]
        cut = {size: self._groups(own, size) for size in sizes}
        chosen = min(sizes, key=lambda size: sum(group.cost for group in cut[size]))
        calls = tuple([call for group in cut[chosen] for call in group.calls(rows)])
        return Plan(calls, tuple(self._heads(rows, chosen)))

    def _groups(self, lengths: list[int], size: int) -> list[_RowGroup]:
        return [_plan_group(lengths, first, first + size, self._costs) for first in range(0, len(lengths), size)]

    def _heads(self, rows: tuple[int, ...], size: int) -> list[ProgramCall]:
        """Return heads of as many whole row groups as a call takes: a head over two parts would join their buffers."""
        most = self.shape.batch // size * size
        groups = (rows[first : first + most] for first in range(0, len(rows), most))
        return [ProgramCall(Bucket(len(group), 1), group) for group in groups]


class _RowGroup(NamedTuple):
    """The cheapest chunks of one group of rows."""

    first: int
    """Index of its first row."""
    ends: list[int]
    """Its lengths, each once, the longest first."""
    active: list[int]
    """active[k]: the number of rows that reach ends[k]."""
    choices: list[int]
    """choices[k]: the index of the end of the chunk that starts at ends[k + 1], or at 0 for the last."""
    cost: int

    def calls(self, rows: tuple[int, ...]) -> list[ProgramCall]:
        """Return its calls, from the first timestep on."""
        calls = []
        start, index = 0, len(self.ends)
        while index > 0:
            count = self.active[index - 1]
            index = self.choices[index - 1]
            end = self.ends[index]
            calls.append(ProgramCall(Bucket(count, end - start), rows[self.first : self.first + count], start))
            start = end
        return calls


def _plan_group(lengths: list[int], first: int, beyond: int, costs: Sequence[IntegerCost]) -> _RowGroup:
    """Plan the rows from `first` to before `beyond`, which one call can take."""
    reaching = {length: count for count, length in enumerate(lengths[first:beyond], start=1)}  # equal ones: the last
    ends, active = list(reaching), list(reaching.values())
    choices, cost = _choose(ends, active, costs)
    return _RowGroup(first, ends, active, choices, cost)


def _choose(ends: list[int], active: list[int], costs: Sequence[IntegerCost]) -> tuple[list[int], int]:
    """Compute `_RowGroup.choices`, and the cost from time 0 on."""
    lines = [(ends[0], 0)]  # u, f(u)
    indices = [0]
    lowest_from = [-1]  # lines[i] is the lowest for the integers from lowest_from[i] to lowest_from[i + 1] - 1
    choices = []
    best = 0
    for index, (count, start) in enumerate(zip(active, [*ends[1:], 0]), start=1):
        call, step = costs[count]
        chosen = bisect_right(lowest_from, step) - 1
        end, rest = lines[chosen]
        choices.append(indices[chosen])
        best = call + (end - start) * step + rest
        while True:
            above_end, above_rest = lines[-1]
            lower_from = (best - above_rest) // (above_end - start) + 1
            if lower_from > lowest_from[-1] or len(lines) == 1:
                break
            del lines[-1], indices[-1], lowest_from[-1]
        lines.append((start, best))
        indices.append(index)
        lowest_from.append(lower_from)
    return choices, best


def _group_sizes(costs: Sequence[IntegerCost], measured: Sequence[int]) -> tuple[int, ...]:
    """Choose the numbers of rows into which a batch may be cut, the largest first.

    They are the most rows of a call, and each measured number of which two or more calls step faster than a larger one.
    """
    most = len(costs) - 1
    rows = [count for count in measured if count < most]
    worthwhile = [
        size
        for size in rows
        if any(
            _step_cost(costs, more, size) < (1 - _MIN_GAIN) * costs[more].step for more in (*rows, most) if more > size
        )
    ]
    return (most, *reversed(worthwhile))


def _step_cost(costs: Sequence[IntegerCost], rows: int, size: int) -> int:
    """Cost of one timestep of `rows` rows in groups of `size`."""
    whole, rest = divmod(rows, size)
    return whole * costs[size].step + costs[rest].step


def first_true(numbers: range, holds: Callable[[int], bool]) -> int:
    """Return the first of the numbers for which `holds`; `numbers.stop` if there is none.

    The step of the range must be 1. `bisect` takes a condition (`key`) only since Python 3.10.

    >>> first_true(range(1, 100), lambda number: number * number > 50)
    8
    >>> first_true(range(3), lambda number: False)
    3
    """
    low, high = numbers.start, max(numbers.start, numbers.stop)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
