"""Shapes: the grid of (batch, length) buckets, and the layout of tensors and carried values."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

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
    >>> grid.bucket_length_for(17)
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

    def bucket_length_for(self, length: int) -> int:
        """The smallest bucket length that holds `length` timesteps.

        Raises:
            SequenceTooLong: no bucket holds it.
        """
        index = bisect_left(self.lengths, length)
        if index == len(self.lengths):
            raise SequenceTooLong(length, self.lengths)
        return self.lengths[index]

    def require_bucket_length(self, length: int) -> int:
        """The bucket length that is `length` itself, for a model that must not be padded.

        Raises:
            LengthNotAccepted: no bucket has it.
        """
        if length not in self.lengths:
            raise LengthNotAccepted(length, self.lengths)
        return length


@dataclass(frozen=True)
class DynamicShape:
    """What a shape-polymorphic engine takes: every number of rows up to `batch`, every number of timesteps to `length`.

    >>> DynamicShape(batch=32, length=512).bucket_length_for(17)
    17
    """

    batch: int
    length: int

    def __post_init__(self) -> None:
        if self.batch < 1 or self.length < 1:
            raise ValueError(f"the limits must be positive, got {self.batch} rows and {self.length} timesteps")

    def bucket_length_for(self, length: int) -> int:
        """`length` itself.

        Raises:
            SequenceTooLong: it is beyond the limit.
        """
        if length > self.length:
            raise SequenceTooLong(length, (self.length,))
        return length

    def require_bucket_length(self, length: int) -> int:
        """The same: nothing needs padding.

        Raises:
            SequenceTooLong: it is beyond the limit.
        """
        return self.bucket_length_for(length)


Shapes = BucketGrid | DynamicShape
"""What an engine takes: a program for each bucket, or one for all shapes."""


Axis = Literal["batch", "time"]
ProgramRole = Literal["sequence", "start", "chunk", "head"]
"""A program of a model. `sequence`: the whole of it, over whole sequences. In pieces of time: `chunk` for a piece of
every sequence, `start` for what the first one begins with, `head` for what follows the last."""
DType = Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: its name, its dtype and its shape with the two varying dimensions named.

    >>> ids = TensorSpec("ids", "int64", ("batch", "time"))
    >>> ids.batch_dim, ids.time_dim, ids.item_shape
    (0, 1, ('time',))
    >>> frames = TensorSpec("frames", "float32", ("time", "batch", 12))
    >>> frames.batch_dim, frames.time_dim, frames.item_shape
    (1, 0, ('time', 12))
    """

    name: str
    dtype: DType
    shape: tuple[int | Axis, ...]
    pad_value: float = 0
    """What stands on the padded timesteps of an input."""
    vocabulary: int | None = None
    """Ids must be in [0, vocabulary); an engine may abort on others. None: any value."""

    @cached_property
    def batch_dim(self) -> int | None:
        """Where the batch dimension is, or None for a tensor that has none."""
        return self.shape.index("batch") if "batch" in self.shape else None

    @cached_property
    def time_dim(self) -> int | None:
        """Where the time dimension is, or None for a tensor that has none."""
        return self.shape.index("time") if "time" in self.shape else None

    @cached_property
    def item_shape(self) -> tuple[int | Axis, ...]:
        """The shape of one request's part: the same without the batch dimension."""
        return tuple(size for size in self.shape if size != "batch")

    @cached_property
    def item_time_dims(self) -> tuple[int, ...]:
        """Where time is in `item_shape`: an attention map has it twice."""
        return tuple(dim for dim, size in enumerate(self.item_shape) if size == "time")

    def sizes(self, batch: int, length: int) -> tuple[int, ...]:
        """The numbers of this shape in one bucket.

        >>> TensorSpec("frames", "float32", ("time", "batch", 12)).sizes(batch=4, length=16)
        (16, 4, 12)
        """
        return tuple([batch if size == "batch" else length if size == "time" else size for size in self.shape])


@dataclass(frozen=True)
class CarriedValue:
    """A tensor that goes on from one piece of a sequence to the next, as a recurrence's state does."""

    spec: TensorSpec
    """Its rows are in front, so that those of a batch's first sequences are a stretch of it."""
    fill: Annotated[float, "infinite"] | None
    """What it holds before the first timestep; None where a program computes that."""


def role_buckets(role: ProgramRole, grid: BucketGrid) -> tuple[Bucket, ...]:
    """Return the buckets in which a program of fixed shapes is compiled: `start` and `head` have no timesteps.

    >>> role_buckets("head", BucketGrid(batches=(1, 4), lengths=(16, 32)))
    (Bucket(batch=1, length=1), Bucket(batch=4, length=1))
    """
    return tuple(Bucket(batch, 1) for batch in grid.batches) if role in ("start", "head") else grid.buckets
