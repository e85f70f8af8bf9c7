"""The shapes that programs take, and the look-up that refuses instead of clamping."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .errors import LengthNotAccepted, SequenceTooLong


class Bucket(NamedTuple):
    """One compiled shape: B rows by T timesteps. A model without time has T = 1, one without batch B = 1."""

    batch: int
    length: int


@dataclass(frozen=True)
class BucketGrid:
    """Every batch size by every length, both ascending.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(16, 32))
    >>> grid.buckets
    (Bucket(batch=1, length=16), Bucket(batch=1, length=32), Bucket(batch=4, length=16), Bucket(batch=4, length=32))
    >>> grid.fit_length(17)
    32
    """

    batches: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        for what, sizes in (("batches", self.batches), ("lengths", self.lengths)):
            if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
                raise ValueError(f"{what} must be positive and strictly ascending, got {sizes}")

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All shapes, ordered by batch, then by length."""
        return tuple(Bucket(batch, length) for batch in self.batches for length in self.lengths)

    def fit_length(self, length: int) -> int:
        """The smallest bucket length that holds `length` timesteps.

        Raises:
            SequenceTooLong: no bucket holds it.
        """
        index = bisect_left(self.lengths, length)
        if index == len(self.lengths):
            raise SequenceTooLong(length, self.lengths)
        return self.lengths[index]

    def exact_length(self, length: int) -> int:
        """The bucket length that is `length` itself, for a model that must not be padded.

        Raises:
            LengthNotAccepted: no bucket has it.
        """
        if length not in self.lengths:
            raise LengthNotAccepted(length, self.lengths)
        return length


@dataclass(frozen=True)
class AnyShape:
    """What a shape-polymorphic engine takes: every number of rows up to `batch`, every number of timesteps to `length`.

    >>> AnyShape(batch=32, length=512).fit_length(17)
    17
    """

    batch: int
    length: int

    def __post_init__(self) -> None:
        if self.batch < 1 or self.length < 1:
            raise ValueError(f"the limits must be positive, got {self.batch} rows and {self.length} timesteps")

    def fit_length(self, length: int) -> int:
        """`length` itself.

        Raises:
            SequenceTooLong: it is beyond the limit.
        """
        if length > self.length:
            raise SequenceTooLong(length, (self.length,))
        return length

    def exact_length(self, length: int) -> int:
        """The same: nothing needs padding.

        Raises:
            SequenceTooLong: it is beyond the limit.
        """
        return self.fit_length(length)


Shapes = BucketGrid | AnyShape
"""What an engine takes: a program for each bucket, or one for all shapes."""
