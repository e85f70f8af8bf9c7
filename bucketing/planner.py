"""Which requests run together, in which bucket: the cheapest plan for a batch of lengths.

Why a group of neighbours in length is always enough. The cheapest bucket that holds k rows up to length t never gets
cheaper when k or t grows. Take any partition of the batch and the group with the longest row of all: exchanging its
other rows for the longest rows of the other groups leaves its own cost as it is and makes no other group longer. So
some cheapest partition cuts the batch, sorted by length, into stretches. And a bucket of B rows may as well take the
B longest of the rows that are left, for fewer and shorter rows never cost more. What remains to be chosen is only the
batch size of the run at each cut: O(rows x batch sizes) steps for the exact optimum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from .cost import CostModel
from .grid import Bucket, BucketGrid

_WEIGHT_PER_NANOSECOND = 1 << 40  # more than any plan's sum of B x T


@dataclass(frozen=True)
class Run:
    """One call of one compiled program: `rows` are the requests' places in the batch, the longest first."""

    bucket: Bucket
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """All runs that one batch of requests needs, the longest first. Every request is in exactly one."""

    runs: tuple[Run, ...]

    @property
    def computed_timesteps(self) -> int:
        """B x T summed over the runs: what the engine computes, padding included."""
        return sum(run.bucket.batch * run.bucket.length for run in self.runs)

    def useful_timesteps(self, lengths: Sequence[int]) -> int:
        """The real timesteps of the requests that were planned."""
        return sum(lengths[row] for run in self.runs for row in run.rows)

    def padded_timesteps(self, lengths: Sequence[int]) -> int:
        """The waste: what is computed beside the real timesteps."""
        return self.computed_timesteps - self.useful_timesteps(lengths)

    def milliseconds(self, cost: CostModel) -> float:
        """What the runs cost together."""
        return sum(cost.of(run.bucket) for run in self.runs)


class _Choice(NamedTuple):
    """The cheapest bucket that holds `rows` rows of one bucket length; a whole number of cost keeps sums exact."""

    rows: int
    weight: int
    bucket: Bucket


@dataclass(frozen=True)
class Planner:
    """Plans batches over one grid and its costs. Built once; a plan for 32 requests takes well below 0.1 ms.

    A bucket is chosen by its cost alone: a larger one that was measured cheaper is taken for a smaller group.

    Of plans that cost the same to the nanosecond, the one with the fewest computed timesteps is taken; of those, the
    one that puts more of the longest requests into the first run. Requests of one length keep their order.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(16, 64))
    >>> planner = Planner(grid, CostModel.proportional(grid))
    >>> for run in planner.plan([9, 60, 16, 12, 3]).runs:
    ...     print(run)
    Run(bucket=Bucket(batch=1, length=64), rows=(1,))
    Run(bucket=Bucket(batch=4, length=16), rows=(2, 3, 0, 4))

    Raises:
        ValueError: a bucket of the grid has no cost.
    """

    grid: BucketGrid
    cost: CostModel
    _padded: tuple[tuple[_Choice, ...], ...] = field(init=False, repr=False, compare=False)
    _exact: tuple[tuple[_Choice, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths = self.grid.lengths
        padded = tuple(_choices(self.grid, self.cost, lengths[index:]) for index in range(len(lengths)))
        exact = tuple(_choices(self.grid, self.cost, (length,)) for length in lengths)
        object.__setattr__(self, "_padded", padded)
        object.__setattr__(self, "_exact", exact)

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest plan for requests of these lengths, which may be padded.

        A batch of more requests than the largest bucket has rows is split.

        Raises:
            SequenceTooLong: a length that no bucket holds.
            ValueError: a length below 1.
        """
        rows = _longest_first(lengths)
        if not rows:
            return Plan(())
        self.grid.fit_length(lengths[rows[0]])
        edges = self.grid.lengths
        return Plan(_cover(rows, [self._padded[bisect_left(edges, lengths[row])] for row in rows]))

    def plan_exact(self, lengths: Sequence[int]) -> Plan:
        """The cheapest plan for a model that must not be padded in time: each run holds rows of its own length only.

        Raises:
            LengthNotAccepted: a length that is no bucket's own.
            ValueError: a length below 1.
        """
        runs: tuple[Run, ...] = ()
        for length, same in groupby(_longest_first(lengths), key=lengths.__getitem__):
            rows = list(same)
            choices = self._exact[self.grid.lengths.index(self.grid.exact_length(length))]
            runs += _cover(rows, [choices] * len(rows))
        return Plan(runs)


def plan(lengths: Sequence[int], grid: BucketGrid, cost: CostModel) -> Plan:
    """`Planner.plan` for a single batch.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(16, 64))
    >>> plan([10], grid, CostModel.proportional(grid)).runs
    (Run(bucket=Bucket(batch=1, length=16), rows=(0,)),)
    """
    return Planner(grid, cost).plan(lengths)


def plan_exact(lengths: Sequence[int], grid: BucketGrid, cost: CostModel) -> Plan:
    """`Planner.plan_exact` for a single batch."""
    return Planner(grid, cost).plan_exact(lengths)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    """The places of the lengths, the longest first, equal ones in their order."""
    rows = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    if rows and lengths[rows[-1]] < 1:
        raise ValueError(f"request {rows[-1]} has {lengths[rows[-1]]} timesteps: an empty sequence cannot be planned")
    return rows


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


def _cover(rows: Sequence[int], choices: Sequence[tuple[_Choice, ...]]) -> tuple[Run, ...]:
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
    return tuple(_follow(rows, taken))


def _follow(rows: Sequence[int], taken: Sequence[_Choice]) -> list[Run]:
    runs = []
    start = 0
    while start < len(rows):
        choice = taken[start]
        runs.append(Run(choice.bucket, tuple(rows[start : start + choice.rows])))
        start += choice.rows
    return runs
