"""Values of a ragged batch: a tensor with the sizes that each request's own part has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from .sizes import SizeExpr, evaluate, in_python, is_ragged


class NoRule(Exception):
    """A call that has no rule over ragged batches; the message is the reason."""


_BLOCK = 32


@dataclass(frozen=True)
class Value:
    """A tensor of every request, [B, *padded sizes]; or one that all requests share, [*padded sizes].

    `sizes` are those of one request's tensor. Beyond a row's own sizes the tensor holds anything, unless `zero_beyond`.
    """

    tensor: torch.Tensor
    sizes: tuple[SizeExpr, ...]
    shared: bool = False
    zero_beyond: bool = False
    is_input: bool = False
    """Whether its elements are those of an input, so that padding is like real elements."""

    @property
    def rank(self) -> int:
        """Number of dimensions of one request's tensor."""
        return len(self.sizes)

    @property
    def ragged_dims(self) -> tuple[int, ...]:
        """Dimensions of one request's tensor whose size depends on its number of timesteps."""
        return tuple(dim for dim, size in enumerate(self.sizes) if is_ragged(size))


@dataclass
class Batch:
    """The padded batch that a graph runs on: its size, its padded timesteps and the lengths int64[B]."""

    rows: Any
    time: Any
    lengths: torch.Tensor
    before: torch.Tensor | None = None
    """Timesteps of each request before those of the batch, int64[B]; None: it has all of them."""
    _own: dict[SizeExpr, torch.Tensor] = field(default_factory=dict)
    _valid: dict[SizeExpr, torch.Tensor] = field(default_factory=dict)

    def padded(self, size: SizeExpr) -> Any:
        """Return a size of the padded tensor."""
        return evaluate(size, self.time)

    def padded_sizes(self, sizes: Iterable[SizeExpr]) -> list[Any]:
        """Return the sizes of the padded tensor, without its rows."""
        return [self.padded(size) for size in sizes]

    def own(self, size: SizeExpr) -> torch.Tensor:
        """Return a size of each request's own tensor, [B]."""
        if size not in self._own:
            own = self.number(size)
            # Rows that fill a batch have one timestep, also where requests have more.
            self._own[size] = own.clamp(min=0) if evaluate(size, 1) < 0 else own
        return self._own[size]

    def number(self, value: SizeExpr) -> torch.Tensor:
        """Return a number of each request, [B], which may be negative, as no size is."""
        return evaluate(value, self.lengths) if is_ragged(value) else torch.full_like(self.lengths, int(value))

    def counted(self, value: SizeExpr) -> torch.Tensor:
        """Return a number of each request, [B], that the model computes with: it counts the timesteps before, too."""
        if self.before is None:
            return self.number(value)
        return Batch(self.rows, self.time, self.lengths + self.before).number(value)

    def positions(self, size: SizeExpr) -> torch.Tensor:
        """Return 0, 1, ... to the padded size."""
        return torch.arange(self.padded(size), device=self.lengths.device)

    def valid(self, size: SizeExpr) -> torch.Tensor:
        """Return which positions of a dimension are within each row's own size, bool[B, padded]."""
        if size not in self._valid:
            self._valid[size] = self.positions(size) < self.own(size).unsqueeze(1)
        return self._valid[size]

    def rows_of(self, value: Value) -> torch.Tensor:
        """Return the tensor with a leading dimension of rows: B of them, or 1 if all rows share it."""
        return value.tensor.unsqueeze(0) if value.shared else value.tensor

    def every_row(self, value: Value) -> torch.Tensor:
        """Return the tensor with a leading dimension of B rows."""
        if not value.shared:
            return value.tensor
        return value.tensor.unsqueeze(0).expand(self.rows, *self.padded_sizes(value.sizes))

    def masked(self, value: Value, dims: Iterable[int], fill: float) -> torch.Tensor:
        """Return the tensor with rows, with `fill` beyond each row's own sizes in these dimensions."""
        tensor = self.rows_of(value)
        ragged = [dim for dim in dims if is_ragged(value.sizes[dim])]
        if fill == 0 and value.zero_beyond:
            return tensor
        fill = limited(fill, tensor.dtype)
        for dim in ragged:
            valid = in_dim(self.valid(value.sizes[dim]), dim + 1, value.rank + 1)
            if tensor.dtype is torch.bool:  # ONNX Runtime has no choice between flags
                tensor = tensor | ~valid if fill else tensor & valid
            else:
                tensor = tensor.masked_fill(~valid, fill)
        return tensor


def limited(fill: float, dtype: torch.dtype) -> Any:
    """Return a fill that the dtype can hold."""
    if dtype.is_floating_point or not math.isinf(fill):
        return bool(fill) if dtype is torch.bool and not math.isinf(fill) else fill
    if dtype is torch.bool:
        return fill > 0
    limits = torch.iinfo(dtype)
    return limits.max if fill > 0 else limits.min


def normalized(dim: int, rank: int) -> int:
    """Return a dimension counted from the front."""
    return dim % max(rank, 1)


Results = Value | tuple[Value, ...]
Rule = Callable[[Batch, "Call"], Results]


@dataclass(frozen=True)
class Call:
    """A call to run on a batch: tensors are `Value`s, sizes and numbers are `SizeExpr`s or constants."""

    target: torch._ops.OpOverload
    arguments: Mapping[str, Any]
    """Arguments by the names of the operator's schema, defaults included."""
    sizes: tuple[tuple[SizeExpr, ...], ...]  # of each result, for one request
    dtypes: tuple[torch.dtype, ...]
    read: frozenset[int] = frozenset()
    """Results of several that are read."""
    sign_sensitive: bool = False
    """Whether a later operator tells 0.0 from -0.0 in the results."""
    traced: Any = None
    """The first argument in the trace of a request, if it is a tensor: its strides are those of eager mode."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument that not every overload has."""
        return self.arguments.get(name, default)

    def value(self, name: str = "self") -> Value:
        """Return an argument that is a tensor."""
        if (value := self.arguments.get(name)) is None:
            value = next(self.values())
        assert isinstance(value, Value)
        return value

    @property
    def dim(self) -> int:
        """The argument `dim`, counted from the front of the tensor."""
        return normalized(self["dim"], self.value().rank)

    @property
    def dims(self) -> tuple[int, ...]:
        """The argument `dim` or `dims`, counted from the front, ascending; all dimensions for None or an empty list."""
        rank, given = self.value().rank, self.get("dim", self.get("dims"))
        if given is None or given == []:
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(sorted(normalized(int(dim), rank) for dim in listed))

    def values(self) -> Iterator[Value]:
        """Yield all tensors among the arguments."""
        for argument in self.arguments.values():
            for value in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(value, Value):
                    yield value

    def all_sizes(self) -> list[SizeExpr]:
        """Return the sizes of tensors and results, and numbers that are computed from sizes."""
        leaves = [argument for argument in pytree.tree_leaves(dict(self.arguments)) if not isinstance(argument, Value)]
        tensors = [size for sizes in (*self.sizes, *(value.sizes for value in self.values())) for size in sizes]
        return tensors + [leaf for leaf in leaves if isinstance(leaf, sympy.Expr)]

    @property
    def shared(self) -> bool:
        """Whether all rows share every tensor of the call."""
        return all(value.shared for value in self.values())

    def run(self, /, **changed: Any) -> Any:
        """Call the operator with tensors in place of the `Value`s: changed arguments, or shared tensors."""
        given = pytree.tree_map_only(Value, _plain, {**self.arguments, **changed})
        schema = self.target._schema.arguments
        named = {a.name for a in schema if a.kwarg_only}
        if "other" in given:
            # the factor of a sum is a keyword only where a number of the timesteps has become a tensor: `T - counts`
            named |= {"alpha"} & given.keys()
        positional = [given[a.name] for a in schema if a.name not in named]
        keywords = {name: given[name] for name in named if given[name] is not None}
        return self.target.overloadpacket(*positional, **keywords)

    def after_rows(self) -> Any:
        """Run the operator on its tensor, with its dimensions counted after the rows, if the tensor has any."""
        value = self.value()
        if value.shared:
            return self.run(**{name: in_python(number) for name, number in self.arguments.items()})
        name = next(name for name, argument in self.arguments.items() if argument is value)
        dims = {key: after_rows(number) for key, number in self.arguments.items() if key.startswith("dim")}
        numbers = {key: in_python(number) for key, number in self.arguments.items() if key not in dims}
        return self.run(**{**numbers, **dims, name: value.tensor})

    def result(self, tensor: torch.Tensor, *, zero_beyond: bool = False) -> Value:
        """Return the only result, which has rows."""
        return Value(tensor, self.sizes[0], zero_beyond=zero_beyond)

    def results(self, tensors: torch.Tensor | Sequence[torch.Tensor], *, shared: bool) -> Results:
        """Return all results, which have rows; where they are shared, these are one."""
        listed = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        pairs = zip(listed, self.sizes, strict=True)
        values = tuple(Value(t.squeeze(0) if shared else t, sizes, shared) for t, sizes in pairs)
        return values if len(values) > 1 else values[0]


def after_rows(dims: Any) -> Any:
    """Return dimensions of a tensor with rows; those counted from the end stay."""
    return pytree.tree_map_only(int, lambda dim: dim + 1 if dim >= 0 else dim, dims)


def _plain(value: Value) -> torch.Tensor:
    if not value.shared:
        raise NoRule("a tensor of every request was left in a call without rows")
    return value.tensor


def reject_split_blocks(value: Value, dim: int) -> None:
    """Refuse a product of half precision that sums over numbers of elements that are not read in whole blocks.

    Instructions for them take pairs of elements, in blocks of at most 32. At the end of a row they take the first
    elements of the next row times 0, so that a NaN or an infinity of one request would reach another one.
    """
    if value.tensor.dtype not in (torch.bfloat16, torch.float16):
        return
    size = value.sizes[dim]
    if is_ragged(size) or int(size) % (2 if size < _BLOCK else _BLOCK):
        raise NoRule("a product of half precision, of which a processor reads parts of two requests together")


def unsqueezed(tensor: torch.Tensor, count: int, place: int = 1) -> torch.Tensor:
    """Insert `count` dimensions of size 1 after the rows, or before another dimension."""
    for _ in range(count):
        tensor = tensor.unsqueeze(place)
    return tensor


def without_ones(value: Value, last: int) -> tuple[Value, tuple[int, ...]]:
    """Return a value without its dimensions of size 1, but the last ones, and the dimensions left out."""
    ones = tuple(dim for dim in range(value.rank - last) if value.sizes[dim] == 1)
    tensor = value.tensor
    for dim in reversed(ones):
        tensor = tensor.squeeze(dim if value.shared else dim + 1)
    sizes = tuple(size for dim, size in enumerate(value.sizes) if dim not in ones)
    return Value(tensor, sizes, value.shared), ones


def with_ones(tensor: torch.Tensor, ones: Sequence[int], *, shared: bool) -> torch.Tensor:
    """Insert the dimensions of size 1 again."""
    for dim in ones:
        tensor = tensor.unsqueeze(dim if shared else dim + 1)
    return tensor


def moved(tensor: torch.Tensor, dim: int, to: int) -> torch.Tensor:
    """Move a dimension; without a call where it is in its place."""
    return tensor if dim == to else tensor.movedim(dim, to)


def in_dim(tensor: torch.Tensor, dim: int, rank: int) -> torch.Tensor:
    """Return a tensor [B, N] with so many dimensions: the rows first, and N in the place `dim`."""
    shape = [1] * rank
    shape[0], shape[dim] = tensor.shape
    return tensor.reshape(shape)


def shifted(dims: Sequence[int]) -> list[int]:
    """Return dimensions of one request's tensor as dimensions of a tensor with rows."""
    return [dim + 1 for dim in dims]
