"""Which requests run together in one call of a `sequence` program, for an engine that takes any shape.

Stretches of the batch, sorted by length, are enough, by the argument in `grid_partition.py`; a group runs in a bucket
of just its rows and its longest length. What remains to be chosen is where to cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from .cost import CostModel
from .grid import AnyShape, Bucket
from .order import longest_first
from .plan import Plan, Run
from .weight import Weighed, weigh_lines

_ALL_SIZES_UP_TO = 8


@dataclass(frozen=True)
class FreePartition:
    """Plans batches for an engine that takes any shape within limits. Built once.

    Groups have up to 8 rows, or as many as were measured, or as the engine takes; the group of the shortest rows is
    what is left, whatever its size. Among such partitions the plan is the cheapest by the `line` of the cost model; of
    equal ones it computes the fewest timesteps, and of those it has more of the longest requests in the first run.

    >>> shape = AnyShape(batch=4, length=64)
    >>> for run in FreePartition(shape, CostModel.proportional(shape)).plan([9, 60, 16, 12, 3]).runs:
    ...     print(run)
    Run(bucket=Bucket(batch=1, length=60), rows=(1,), start=0)
    Run(bucket=Bucket(batch=4, length=16), rows=(2, 3, 0, 4), start=0)
    """

    shape: AnyShape
    cost: CostModel
    padded: bool = True
    """False: the model must not be padded in time. Then each run holds rows of its own length only."""
    _weights: tuple[Weighed, ...] = field(init=False, repr=False, compare=False)
    _sizes: tuple[tuple[int, int, int], ...] = field(init=False, repr=False, compare=False)
    """Size, weight of a call, weight of each of its timesteps; the largest first."""

    def __post_init__(self) -> None:
        weights = weigh_lines(self.cost, self.shape.batch)
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
        self.shape.fit_length(lengths[rows[0]])
        if self.padded:
            return Plan(tuple(self._groups(rows, [lengths[row] for row in rows])))
        runs: list[Run] = []
        for length, same in groupby(rows, key=lengths.__getitem__):
            own = list(same)
            runs += self._groups(own, [length] * len(own))
        return Plan(tuple(runs))

    def _groups(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Run]:
        """The cheapest groups of `rows`, the longest first."""
        taken = self._cuts(lengths)
        runs = []
        start = 0
        while start < len(rows):
            group = tuple(rows[start : start + taken[start]])
            runs.append(Run(Bucket(len(group), lengths[start]), group))
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
