"""Which requests run together where the user chooses the length of each one's bucket: those of one length.

What remains to be chosen is the batch size of each run: by cost, as for a model that must not be padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .cost import CostModel
from .grid import BucketGrid
from .grid_partition import GridPartition
from .order import longest_first
from .plan import Plan, Run


@dataclass(frozen=True)
class KernelPartition:
    """Plans batches over one grid, each request in buckets of the length that `table` has for its timesteps.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(2, 4))
    >>> planner = KernelPartition(grid, CostModel.proportional(grid), table=(2, 4, 4, 4))
    >>> for run in planner.plan([1, 2, 4, 1]).runs:
    ...     print(run)
    Run(bucket=Bucket(batch=4, length=4), rows=(2, 1), start=0)
    Run(bucket=Bucket(batch=4, length=2), rows=(0, 3), start=0)
    """

    grid: BucketGrid
    cost: CostModel
    table: tuple[int, ...]
    """The bucket length for 1, 2, 3, ... timesteps, as `kernel_table.tabulate` makes it."""
    _of_lengths: GridPartition = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_of_lengths", GridPartition(self.grid, self.cost, padded=False))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest plan for requests of these lengths, each in buckets of the length chosen for it.

        Raises:
            SequenceTooLong: a length that no bucket holds.
            ValueError: a length below 1.
        """
        rows = longest_first(lengths)
        if rows:
            self.grid.fit_length(lengths[rows[0]])
        chosen = self._of_lengths.plan([self.table[lengths[row] - 1] for row in rows])
        return Plan(tuple(Run(run.bucket, tuple(rows[place] for place in run.rows)) for run in chosen.runs))
