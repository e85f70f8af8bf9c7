"""What running a bucket costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from .grid import Bucket, BucketGrid


@dataclass(frozen=True)
class CostModel:
    """The measured milliseconds of one run of each bucket, however few of its rows are real.

    >>> cost = CostModel({Bucket(1, 16): 0.5, Bucket(4, 16): 0.9})
    >>> cost.of(Bucket(4, 16))
    0.9
    """

    milliseconds: Mapping[Bucket, float]

    def __post_init__(self) -> None:
        for bucket, milliseconds in self.milliseconds.items():
            if not (isfinite(milliseconds) and milliseconds > 0):
                raise ValueError(
                    f"the cost of bucket {bucket.batch} x {bucket.length} must be a positive number of milliseconds, "
                    f"got {milliseconds}"
                )

    def of(self, bucket: Bucket) -> float:
        """Milliseconds of one run of `bucket`.

        Raises:
            ValueError: it was not measured.
        """
        if bucket not in self.milliseconds:
            raise ValueError(f"no cost is known for bucket {bucket.batch} x {bucket.length}: measure every bucket")
        return self.milliseconds[bucket]

    @classmethod
    def proportional(cls, grid: BucketGrid) -> CostModel:
        """A stand-in until the grid is measured: 0.1 ms for a call and 0.002 ms for each of its B x T cells.

        >>> CostModel.proportional(BucketGrid(batches=(1, 4), lengths=(50,))).of(Bucket(4, 50))
        0.5
        """
        return cls({bucket: 0.1 + 0.002 * bucket.batch * bucket.length for bucket in grid.buckets})
