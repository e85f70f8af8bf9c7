"""Grid of (batch, length) buckets; layout of tensors and carried values.

Sizes may follow from a sequence's number of timesteps, as a convolution with a stride makes them. They are written as
expressions of `time` in integers: `time`, `2*time - 1`, `(time - 1)//2 + 1`. An output of a model that is served by its
own code may have a size that differs by request, which is written as `any`.
"""

from __future__ import annotations

import ast
import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, Literal, NamedTuple, Optional, Union

from .errors import SequenceTooLong

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"Max": max, "Min": min}


ANY_SIZE = "any"
"""A size of an output that follows from the values of a request, or from its timesteps in an unknown way."""
_MOST_CHARACTERS = 1000  # of an expression: parsing a long one takes unbounded memory


def check_time_size(text: str) -> None:
    """Refuse what is neither an expression of `time` nor `any`.

    >>> check_time_size("time / 2")
    Traceback (most recent call last):
    ValueError: expected an integer expression of time, got 'time / 2'

    Raises `ValueError`: it is none; the message has its first characters.
    """
    if text == ANY_SIZE:
        return
    try:
        _parsed(text)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        raise ValueError(f"expected an integer expression of time, got {text[:60]!r}") from None


def size_at(size: str, time: int) -> int:
    """Return a size for a sequence of `time` timesteps; 0, the least, for one that is not known before.

    >>> size_at("(time - 1)//2 + 1", 23)
    12
    """
    if size == "time":
        return time
    return 0 if size == ANY_SIZE else _evaluated(_parsed(size), time)


@cache
def _parsed(text: str) -> ast.expr:
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(text)
    tree = ast.parse(text, mode="eval").body
    if not any(isinstance(node, ast.Name) and node.id == "time" for node in ast.walk(tree)):
        raise ValueError(text)
    _evaluated(tree, 1 << 16)  # every node is of a kind that has a value
    return tree


def _evaluated(node: ast.expr, time: int) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id == "time":
        return time
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand, time)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluated(node.left, time), _evaluated(node.right, time))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and node.args:
        return _FUNCTIONS[node.func.id](*[_evaluated(argument, time) for argument in node.args])
    raise ValueError(ast.dump(node))


class Bucket(NamedTuple):
    """One compiled shape: B rows by T timesteps. A model without time has T = 1, one without batch B = 1."""

    batch: int
    length: int


def ascending_error(sizes: Sequence[int]) -> str | None:
    """Describe why these are not sizes of 1 or more in ascending order, each once; None if they are.

    >>> ascending_error([4, 2])
    'expected ascending sizes, each once, got [4, 2]: write [2, 4]'
    """
    if not sizes or min(sizes) < 1:
        return f"expected sizes of 1 or more, got {list(sizes)}"
    in_order = sorted(set(sizes))
    if list(sizes) != in_order:
        return f"expected ascending sizes, each once, got {list(sizes)}: write {in_order}"
    return None


@dataclass(frozen=True)
class BucketGrid:
    """All combinations of batch sizes and lengths, both ascending.

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
            if error := ascending_error(sizes):
                raise ValueError(f"{what}: {error}")

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All buckets, ordered by batch, then by length."""
        return tuple(Bucket(batch, length) for batch in self.batches for length in self.lengths)

    def bucket_length_for(self, length: int) -> int:
        """Return the smallest bucket length that holds `length` timesteps.

        Raises `SequenceTooLong`: no bucket holds it.
        """
        index = bisect_left(self.lengths, length)
        if index == len(self.lengths):
            raise SequenceTooLong(length, self.lengths)
        return self.lengths[index]

    def smallest_holding(self, rows: int, length: int) -> Bucket:
        """Return the smallest bucket of at least `rows` x `length`, with sizes clamped to the grid's largest.

        >>> BucketGrid(batches=(1, 4), lengths=(16, 32)).smallest_holding(rows=2, length=40)
        Bucket(batch=4, length=32)
        """
        return Bucket(_clamped_ceiling(self.batches, rows), _clamped_ceiling(self.lengths, length))


def _clamped_ceiling(sizes: Sequence[int], size: int) -> int:
    return sizes[min(bisect_left(sizes, size), len(sizes) - 1)]


@dataclass(frozen=True)
class DynamicShape:
    """Shapes of an engine with dynamic shapes: 1 to `batch` rows, 1 to `length` timesteps.

    >>> DynamicShape(batch=32, length=512).bucket_length_for(17)
    17
    """

    batch: int
    length: int

    def bucket_length_for(self, length: int) -> int:
        """Return `length`. Raises `SequenceTooLong`: `length` is beyond the limit."""
        if length > self.length:
            raise SequenceTooLong(length, (self.length,))
        return length


Shapes = Union[BucketGrid, DynamicShape]
"""Shapes that an engine accepts: one program for each bucket, or one program for all shapes."""

Axis = Literal["batch", "time"]
Size = Union[int, Axis, Annotated[str, check_time_size]]
"""A size of a tensor: a number, a varying dimension, or an expression of `time`."""
ProgramRole = Literal["sequence", "start", "chunk", "head"]
"""Role of a program. `sequence` is the whole model, over whole sequences.

In chunked execution `chunk` computes one chunk of time of every sequence, `start` the initial carried values, and
`head` the outputs that follow the last chunk."""
DType = Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


PACKAGING_ONLY = {"packaging_only": True}
"""Metadata of a field that is not written into an archive."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype and shape of a tensor; the two varying dimensions are named.

    >>> ids = TensorSpec("ids", "int64", ("batch", "time"))
    >>> ids.batch_dim, ids.time_dim, ids.item_shape
    (0, 1, ('time',))
    >>> frames = TensorSpec("frames", "float32", ("time", "batch", 12))
    >>> frames.batch_dim, frames.time_dim, frames.item_shape
    (1, 0, ('time', 12))

    An output may have a size that follows from the timesteps:

    >>> TensorSpec("logits", "float32", ("batch", "(time - 1)//2 + 1", 9)).sizes(batch=4, length=16)
    (4, 8, 9)
    """

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    pad_value: float = 0
    """Value of an input on padded timesteps."""
    vocabulary: Optional[int] = None
    """Upper bound of ids in [0, vocabulary), since an engine may abort on others; None: any value."""
    value_range: Optional[tuple[float, float]] = field(default=None, metadata=PACKAGING_ONLY)
    """Least and largest value, both included; None: any.

    Packaging draws requests from it. A host has it only for inputs whose values it must check: see `parse_manifest`.
    """
    nan: bool = False
    """Whether an input takes NaN, for values that are missing."""

    @cached_property
    def batch_dim(self) -> int | None:
        """Index of the batch dimension, or None."""
        return self.shape.index("batch") if "batch" in self.shape else None

    @cached_property
    def time_dim(self) -> int | None:
        """Index of the first dimension that is time, or follows from it; None without one."""
        return next((dim for dim, size in enumerate(self.shape) if _has_time(size)), None)

    @cached_property
    def item_shape(self) -> tuple[Size, ...]:
        """Shape of one request's tensor: `shape` without the batch dimension."""
        return tuple(size for size in self.shape if size != "batch")

    @cached_property
    def item_time_dims(self) -> tuple[int, ...]:
        """Indices of time in `item_shape`: an attention map has two."""
        return tuple(dim for dim, size in enumerate(self.item_shape) if _has_time(size))

    def item_sizes(self, length: int) -> tuple[int, ...]:
        """Return the sizes of `item_shape` for a sequence of this length.

        >>> TensorSpec("frames", "float32", ("time", "batch", 12)).item_sizes(16)
        (16, 12)
        """
        return tuple([size_at(size, length) if isinstance(size, str) else size for size in self.item_shape])

    def sizes(self, batch: int, length: int) -> tuple[int, ...]:
        """Return the shape in numbers, for one bucket.

        >>> TensorSpec("frames", "float32", ("time", "batch", 12)).sizes(batch=4, length=16)
        (16, 4, 12)
        """
        return tuple(
            [
                batch if size == "batch" else size_at(size, length) if isinstance(size, str) else size
                for size in self.shape
            ]
        )


def _has_time(size: Size) -> bool:
    return isinstance(size, str) and size != "batch"


@dataclass(frozen=True)
class CarriedValue:
    """Tensor handed from one chunk of a sequence to the next (the carry of `lax.scan`)."""

    spec: TensorSpec
    """Layout; the batch dimension is the first, so that the rows of the first sequences are contiguous."""
    fill: Optional[Annotated[float, "infinite"]]
    """Initial value, before the first timestep; None if the `start` program computes it."""


def role_buckets(role: ProgramRole, grid: BucketGrid) -> tuple[Bucket, ...]:
    """Return the buckets of a program of fixed shapes; `start` and `head` have no timesteps.

    >>> role_buckets("head", BucketGrid(batches=(1, 4), lengths=(16, 32)))
    (Bucket(batch=1, length=1), Bucket(batch=4, length=1))
    """
    return tuple(Bucket(batch, 1) for batch in grid.batches) if role in ("start", "head") else grid.buckets
