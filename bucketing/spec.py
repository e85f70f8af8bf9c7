"""How one tensor argument or answer of a program is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Axis = Literal["batch", "time"]
Part = Literal["sequence", "start", "chunk", "head"]
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
class Carried:
    """A tensor that goes on from one piece of a sequence to the next, as a recurrence's state does."""

    spec: TensorSpec
    """Its rows are in front, so that those of a batch's first sequences are a stretch of it."""
    fill: float | None
    """What it holds before the first timestep; None where a program computes that."""
