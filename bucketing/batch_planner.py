"""Which requests run together in one call of a `sequence` program: the cheapest partition of a batch of lengths.

Why a group of neighbours in length is always enough. The cheapest bucket that holds k rows up to length t never gets
cheaper when k or t grows. Take any partition of the batch and the group with the longest row of all: exchanging its
other rows for the longest rows of the other groups leaves its own cost as it is and makes no other group longer. So
some cheapest partition cuts the batch, sorted by length, into stretches. And a bucket of B rows may as well take the
B longest of the rows that are left, for fewer and shorter rows never cost more. What remains to be chosen is only the
batch size of the run at each cut: O(rows x batch sizes) steps for the exact optimum.

For an engine that takes any shape the same argument holds; a group runs in a bucket of just its rows and its longest
length, and what remains to be chosen is where to cut. Where the user chooses the bucket of each length, or the model
must not be padded, only rows of one bucket length run together, and what remains is the batch size of each run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from .cost import CostModel, IntegerCost, integer_costs
from .plan import Plan, ProgramCall, longest_first
from .shapes import Bucket, BucketGrid, DynamicShape

_WEIGHT_PER_NANOSECOND = 1 << 40  # more than any plan's sum of B x T


class _Choice(NamedTuple):
    """The cheapest bucket that holds `rows` rows of one bucket length; a whole number of cost keeps sums exact."""

    rows: int
    weight: int
    bucket: Bucket


@dataclass(frozen=True)
class BucketPlanner:
    """Plans batches over one grid and its costs. Built once; a plan for 32 requests takes well below 0.1 ms.

    A bucket is chosen by its cost alone: a larger one that was measured cheaper is taken for a smaller group.

    Of plans that cost the same to the nanosecond, the one with the fewest computed timesteps is taken; of those, the
    one that puts more of the longest requests into the first run. Requests of one length keep their order.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(16, 64))
    >>> planner = BucketPlanner(grid, CostModel.proportional(grid))
    >>> for run in planner.plan([9, 60, 16, 12, 3]).runs:
    ...     print(run)
    ProgramCall(bucket=Bucket(batch=1, length=64), rows=(1,), start=0)
    ProgramCall(bucket=Bucket(batch=4, length=16), rows=(2, 3, 0, 4), start=0)
    """

    grid: BucketGrid
    cost: CostModel
    padded: bool = True
    """False: the model must not be padded in time. Then each run holds rows of its own length only."""
    _choices: tuple[tuple[_Choice, ...], ...] = field(init=False, repr=False, compare=False)
    """For each bucket length, what may run rows of it."""

    def __post_init__(self) -> None:
        lengths = self.grid.lengths
        holding = [lengths[index:] if self.padded else (length,) for index, length in enumerate(lengths)]
        object.__setattr__(self, "_choices", tuple(_choices(self.grid, self.cost, own) for own in holding))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest plan for requests of these lengths.

        A batch of more requests than the largest bucket has rows is split.

        Raises:
            SequenceTooLong: a length that no bucket holds.
            LengthNotAccepted: a length that is no bucket's own, where rows must not be padded.
            ValueError: a length below 1.
        """
        rows = longest_first(lengths)
        if not rows:
            return Plan(())
        edges = self.grid.lengths
        if self.padded:
            self.grid.bucket_length_for(lengths[rows[0]])
            return Plan(tuple(_cover(rows, [self._choices[bisect_left(edges, lengths[row])] for row in rows])))
        runs: list[ProgramCall] = []
        for length, same in groupby(rows, key=lengths.__getitem__):
            own = list(same)
            choices = self._choices[edges.index(self.grid.require_bucket_length(length))]
            runs += _cover(own, [choices] * len(own))
        return Plan(tuple(runs))


def _choices(grid: BucketGrid, cost: CostModel, lengths: tuple[int, ...]) -> tuple[_Choice, ...]:
    """For every batch size that can pay, its cheapest bucket among `lengths`; more rows always cost more."""
    kept: list[_Choice] = []
    for batch in reversed(grid.batches):
        weight, bucket = min((_weight(cost, Bucket(batch, length)), Bucket(batch, length)) for length in lengths)
        if not kept or weight < kept[-1].weight:
            kept.append(_Choice(batch, weight, bucket))
    return tuple(kept)


def _weight(cost: CostModel, bucket: Bucket) -> int:
    """Nanoseconds, then B x T, as one whole number: the order of plans, exact under addition."""
    nanoseconds = max(1, round(cost.of(bucket) * 1e6))
    return nanoseconds * _WEIGHT_PER_NANOSECOND + bucket.batch * bucket.length


def _cover(rows: Sequence[int], choices: Sequence[tuple[_Choice, ...]]) -> list[ProgramCall]:
    """The cheapest runs for `rows`, the longest first; `choices[i]` are the buckets for row i and those after it."""
    count = len(rows)
    best = [0] * (count + 1)  # best[i]: the least weight of running rows i and after
    taken = [choices[0][0]] * count
    for start in range(count - 1, -1, -1):
        least = -1
        for choice in choices[start]:
            end = start + choice.rows
            weight = choice.weight + best[end] if end < count else choice.weight
            if weight < least or least < 0:
                least, taken[start] = weight, choice
        best[start] = least
    return _follow(rows, taken)


def _follow(rows: Sequence[int], taken: Sequence[_Choice]) -> list[ProgramCall]:
    runs = []
    start = 0
    while start < len(rows):
        choice = taken[start]
        runs.append(ProgramCall(choice.bucket, tuple(rows[start : start + choice.rows])))
        start += choice.rows
    return runs


_ALL_SIZES_UP_TO = 8


@dataclass(frozen=True)
class DynamicPlanner:
    """Plans batches for an engine that takes any shape within limits. Built once.

    Groups have up to 8 rows, or as many as were measured, or as the engine takes; the group of the shortest rows is
    what is left, whatever its size. Among such partitions the plan is the cheapest by the `line` of the cost model; of
    equal ones it computes the fewest timesteps, and of those it has more of the longest requests in the first run.

    >>> shape = DynamicShape(batch=4, length=64)
    >>> for run in DynamicPlanner(shape, CostModel.proportional(shape)).plan([9, 60, 16, 12, 3]).runs:
    ...     print(run)
    ProgramCall(bucket=Bucket(batch=1, length=60), rows=(1,), start=0)
    ProgramCall(bucket=Bucket(batch=4, length=16), rows=(2, 3, 0, 4), start=0)
    """

    shape: DynamicShape
    cost: CostModel
    padded: bool = True
    """False: the model must not be padded in time. Then each run holds rows of its own length only."""
    _weights: tuple[IntegerCost, ...] = field(init=False, repr=False, compare=False)
    _sizes: tuple[tuple[int, int, int], ...] = field(init=False, repr=False, compare=False)
    """Size, weight of a call, weight of each of its timesteps; the largest first."""

    def __post_init__(self) -> None:
        weights = integer_costs(self.cost, self.shape.batch)
        sizes = {*range(1, _ALL_SIZES_UP_TO + 1), *self.cost.batches, self.shape.batch}
        object.__setattr__(self, "_weights", weights)
        object.__setattr__(
            self,
            "_sizes",
            tuple((size, *weights[size]) for size in sorted(sizes, reverse=True) if size <= self.shape.batch),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of groups, ascending."""
        return tuple(size for size, _, _ in reversed(self._sizes))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest plan for requests of these lengths.

        Raises:
            SequenceTooLong: a length beyond the limit.
            ValueError: a length below 1.
        """
        rows = longest_first(lengths)
        if not rows:
            return Plan(())
        self.shape.bucket_length_for(lengths[rows[0]])
        if self.padded:
            return Plan(tuple(self._groups(rows, [lengths[row] for row in rows])))
        runs: list[ProgramCall] = []
        for length, same in groupby(rows, key=lengths.__getitem__):
            own = list(same)
            runs += self._groups(own, [length] * len(own))
        return Plan(tuple(runs))

    def _groups(self, rows: Sequence[int], lengths: Sequence[int]) -> list[ProgramCall]:
        """The cheapest groups of `rows`, the longest first."""
        taken = self._cuts(lengths)
        runs = []
        start = 0
        while start < len(rows):
            group = tuple(rows[start : start + taken[start]])
            runs.append(ProgramCall(Bucket(len(group), lengths[start]), group))
            start += len(group)
        return runs

    def _cuts(self, lengths: Sequence[int]) -> list[int]:
        """For each row, how many rows the group has that begins with it."""
        count = len(lengths)
        best = [0] * (count + 1)  # best[i]: the least weight of running rows i and after
        taken = [0] * count
        for start in range(count - 1, -1, -1):
            length = lengths[start]
            left = count - start
            least = -1
            if left <= self.shape.batch:
                call, step = self._weights[left]
                least, taken[start] = call + length * step, left
            for size, call, step in self._sizes:
                if size < left:
                    weight = call + length * step + best[start + size]
                    if weight < least or least < 0:
                        least, taken[start] = weight, size
            best[start] = least
        return taken


@dataclass(frozen=True)
class SelectedBucketPlanner:
    """Plans batches over one grid, each request in buckets of the length that `table` has for its timesteps.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(2, 4))
    >>> planner = SelectedBucketPlanner(grid, CostModel.proportional(grid), table=(2, 4, 4, 4))
    >>> for run in planner.plan([1, 2, 4, 1]).runs:
    ...     print(run)
    ProgramCall(bucket=Bucket(batch=4, length=4), rows=(2, 1), start=0)
    ProgramCall(bucket=Bucket(batch=4, length=2), rows=(0, 3), start=0)
    """

    grid: BucketGrid
    cost: CostModel
    table: tuple[int, ...]
    """The bucket length for 1, 2, 3, ... timesteps, as `kernel_table.tabulate` makes it."""
    _of_lengths: BucketPlanner = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_of_lengths", BucketPlanner(self.grid, self.cost, padded=False))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest plan for requests of these lengths, each in buckets of the length chosen for it.

        Raises:
            SequenceTooLong: a length that no bucket holds.
            ValueError: a length below 1.
        """
        rows = longest_first(lengths)
        if rows:
            self.grid.bucket_length_for(lengths[rows[0]])
        chosen = self._of_lengths.plan([self.table[lengths[row] - 1] for row in rows])
        return Plan(tuple(ProgramCall(run.bucket, tuple(rows[place] for place in run.rows)) for run in chosen.runs))
