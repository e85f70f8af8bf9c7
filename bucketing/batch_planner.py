"""Planners for `sequence` programs: the cheapest partition of a batch of lengths into calls.

Groups of rows with neighbouring lengths are always enough, for this reason. The cheapest bucket that holds k rows up to
length t never gets cheaper when k or t grows. Take any partition of the batch and the group with the longest row of
all: exchanging its other rows for the longest rows of the other groups leaves its own cost unchanged and makes no other
group longer. So some cheapest partition cuts the batch, sorted by length, into contiguous groups. And a bucket of B
rows may as well take the B longest of the remaining rows, because fewer and shorter rows never cost more. What remains
to be chosen is only the batch size of the call at each cut: O(rows x batch sizes) steps for the exact optimum.

For an engine with dynamic shapes the same argument holds; a group runs in a bucket of exactly its rows and its longest
length, and what remains to be chosen is where to cut. If the user selects the bucket length of each request, only rows
of one bucket length run together. Then only the batch size of each call is chosen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from .cost import CostModel, bucket_costs, integer_costs
from .plan import Plan, ProgramCall, longest_first
from .shapes import Bucket, BucketGrid, DynamicShape, Shapes

_Partition = Callable[[Sequence[int], Sequence[int]], list[ProgramCall]]
"""Plan the calls for rows and their lengths, the longest first."""


def _partition_batch(
    lengths: Sequence[int], shapes: Shapes, partition: _Partition, selected: Sequence[int] | None = None
) -> Plan:
    """Plan all rows together; where the user selects bucket lengths, each of them separately."""
    rows = longest_first(lengths)
    if not rows:
        return Plan(())
    shapes.bucket_length_for(lengths[rows[0]])
    if selected is None:
        return Plan(tuple(partition(rows, [lengths[row] for row in rows])))
    lengths = [selected[length - 1] for length in lengths]
    rows.sort(key=lengths.__getitem__, reverse=True)
    calls: list[ProgramCall] = []
    for length, group in groupby(rows, key=lengths.__getitem__):
        own = list(group)
        calls += partition(own, [length] * len(own))
    return Plan(tuple(calls))


class _Choice(NamedTuple):
    """The cheapest bucket that holds `rows` rows of one bucket length, and its integer cost."""

    rows: int
    cost: int
    bucket: Bucket


class BucketPlanner:
    """Planner of batches over one grid and its costs.

    Built once; a plan for 32 requests takes well below 0.1 ms. A bucket is chosen by its cost alone: a larger bucket
    that was measured cheaper is taken for a smaller group.

    Of plans that cost the same to the nanosecond, the one with the fewest computed timesteps is taken; of those, the
    one that puts more of the longest requests into the first call. Requests of one length keep their order.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(16, 64))
    >>> planner = BucketPlanner(grid, CostModel.proportional(grid))
    >>> for call in planner.plan([9, 60, 16, 12, 3]).calls:
    ...     print(call)
    ProgramCall(bucket=Bucket(batch=1, length=64), rows=(1,), start=0)
    ProgramCall(bucket=Bucket(batch=4, length=16), rows=(2, 3, 0, 4), start=0)
    """

    def __init__(self, grid: BucketGrid, cost: CostModel, selected: tuple[int, ...] | None = None) -> None:
        """`selected` has the bucket lengths for 1, 2, 3, ... timesteps (`tabulate_selector`); None: by cost."""
        self.grid, self.cost, self.selected = grid, cost, selected
        lengths, costs = grid.lengths, bucket_costs(cost, grid.buckets)
        holding = [lengths[index:] if selected is None else (length,) for index, length in enumerate(lengths)]
        self._choices = [_choices(grid.batches, own, costs) for own in holding]
        """For each bucket length, the choices for a call of rows of that length."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the cheapest plan for requests of these lengths.

        A batch of more requests than the largest bucket has rows is split.
        """
        return _partition_batch(lengths, self.grid, self._cover, self.selected)

    def _cover(self, rows: Sequence[int], lengths: Sequence[int]) -> list[ProgramCall]:
        edges = self.grid.lengths
        chosen = _cheapest_cover([self._choices[bisect_left(edges, length)] for length in lengths])
        calls = []
        start = 0
        while start < len(rows):
            choice = chosen[start]
            calls.append(ProgramCall(choice.bucket, tuple(rows[start : start + choice.rows])))
            start += choice.rows
        return calls


def _choices(batches: Sequence[int], lengths: Sequence[int], costs: Mapping[Bucket, int]) -> tuple[_Choice, ...]:
    """For each batch size that can be worth its cost, choose the cheapest bucket. More rows always cost more."""
    kept: list[_Choice] = []
    for batch in reversed(batches):
        cost, bucket = min((costs[bucket], bucket) for bucket in (Bucket(batch, length) for length in lengths))
        if not kept or cost < kept[-1].cost:
            kept.append(_Choice(batch, cost, bucket))
    return tuple(kept)


def _cheapest_cover(choices: Sequence[tuple[_Choice, ...]]) -> list[_Choice]:
    """For each row, the first choice of the cheapest calls from it on. `choices[i]` are for a call that starts at i."""
    count = len(choices)
    best = [0] * (count + 1)  # best[i]: the least cost of running rows i and after
    chosen = [choices[0][0]] * count
    for start in range(count - 1, -1, -1):
        least = -1
        for choice in choices[start]:
            end = start + choice.rows
            cost = choice.cost + best[end] if end < count else choice.cost
            if cost < least or least < 0:
                least, chosen[start] = cost, choice
        best[start] = least
    return chosen


_ALL_SIZES_UP_TO = 8


class DynamicPlanner:
    """Planner of batches for an engine that takes any shape within limits. Built once.

    Groups have up to 8 rows, or as many as were measured, or as the engine takes; the group of the shortest rows has
    whatever remains. Among such partitions the plan is the cheapest by the `line` of the cost model; of equal ones it
    computes the fewest timesteps, and of those it has more of the longest requests in the first call.

    >>> shape = DynamicShape(batch=4, length=64)
    >>> for call in DynamicPlanner(shape, CostModel.proportional(shape)).plan([9, 60, 16, 12, 3]).calls:
    ...     print(call)
    ProgramCall(bucket=Bucket(batch=1, length=60), rows=(1,), start=0)
    ProgramCall(bucket=Bucket(batch=4, length=16), rows=(2, 3, 0, 4), start=0)
    """

    def __init__(self, shape: DynamicShape, cost: CostModel) -> None:
        self.shape, self.cost = shape, cost
        sizes = {*range(1, _ALL_SIZES_UP_TO + 1), *cost.batches, shape.batch}
        self.sizes = tuple(size for size in sorted(sizes) if size <= shape.batch)
        """Numbers of rows that groups may have, ascending."""
        self._costs = integer_costs(cost, shape.batch)
        self._sizes: list[tuple[int, int, int]] = [(size, *self._costs[size]) for size in reversed(self.sizes)]
        """Rows, cost of a call, cost of each of its timesteps; the largest first."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the cheapest plan for requests of these lengths."""
        return _partition_batch(lengths, self.shape, self._groups)

    def _groups(self, rows: Sequence[int], lengths: Sequence[int]) -> list[ProgramCall]:
        sizes = self._group_sizes(lengths)
        calls = []
        start = 0
        while start < len(rows):
            group = tuple(rows[start : start + sizes[start]])
            calls.append(ProgramCall(Bucket(len(group), lengths[start]), group))
            start += len(group)
        return calls

    def _group_sizes(self, lengths: Sequence[int]) -> list[int]:
        """For each row, the size of the group that starts with it."""
        count = len(lengths)
        best = [0] * (count + 1)  # best[i]: the least cost of running rows i and after
        sizes = [0] * count
        for start in range(count - 1, -1, -1):
            length = lengths[start]
            left = count - start
            least = -1
            if left <= self.shape.batch:
                call, step = self._costs[left]
                least, sizes[start] = call + length * step, left
            for size, call, step in self._sizes:
                if size < left:
                    cost = call + length * step + best[start + size]
                    if cost < least or least < 0:
                        least, sizes[start] = cost, size
            best[start] = least
        return sizes
