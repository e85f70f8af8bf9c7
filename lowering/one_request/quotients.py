"""Quotients of sizes, as `lengths / 2` and `math.ceil(T / 2)` have them: exact until they are rounded.

A float of torch that is computed from sizes is rounded by functions that have no rule. So it is noted on each such
float which quotient it is, and rounding it gives an integer expression of sizes.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from functools import partialmethod
from typing import Any

import numpy as np
import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..errors import LoweringError, calling_line, source_suffix
from ..exporter.model_attributes import replaced_each

_GREATEST_DENOMINATOR = 2**16
"""More than any stride; other floats, such as 0.1, are no quotients of small integers."""
_MOST_TIMESTEPS = 2**20
"""More than any bucket has."""
_NOTE = "_neuron_lstm_quotient"


class NoQuotient(Exception):
    """A number that is no quotient with a known denominator, or whose rounding depends on its sign."""


@dataclass(frozen=True, eq=False)
class Quotient:
    """`numerator / denominator`, of which the numerator may be symbolic."""

    numerator: Any
    denominator: int

    def __add__(self, other: Any) -> Quotient:
        o, denominator = quotient(other), self.denominator
        if not _is_exact(denominator):
            _reject_rounded(o.denominator)
        return Quotient(self.numerator * o.denominator + o.numerator * denominator, denominator * o.denominator)

    def __sub__(self, other: Any) -> Quotient:
        return self.__add__(quotient(other).__neg__())

    def __neg__(self) -> Quotient:
        return Quotient(-self.numerator, self.denominator)

    def __mul__(self, other: Any) -> Quotient:
        o = quotient(other)
        _reject_rounded(self.denominator, o.denominator)
        return Quotient(self.numerator * o.numerator, self.denominator * o.denominator)

    def __truediv__(self, other: Any) -> Quotient:
        o = quotient(other)
        if not isinstance(o.numerator, int) or o.numerator <= 0:
            raise NoQuotient
        _reject_rounded(o.denominator)
        return Quotient(self.numerator * o.denominator, self.denominator * o.numerator)

    def __floordiv__(self, other: Any) -> Any:
        return (self / other).__floor__()

    def __floor__(self) -> Any:
        return self.numerator // self.denominator

    def __ceil__(self) -> Any:
        return (self.numerator + self.denominator - 1) // self.denominator

    def __trunc__(self) -> Any:
        if least(self.numerator) < 0:
            raise NoQuotient
        return self.__floor__()

    def in_python(self) -> Any:
        """Return the number that Python has for it."""
        return noted_quotient(self.numerator / self.denominator, self)


def _is_exact(denominator: int) -> bool:
    """Whether a float holds quotients of this denominator as they are."""
    return denominator & (denominator - 1) == 0


def _reject_rounded(*denominators: int) -> None:
    """Refuse to multiply or to add rounded floats: `7 * (lengths / 7)` may be less than `lengths`.

    Raises `NoQuotient`: one of the quotients is rounded.
    """
    if not all(map(_is_exact, denominators)):
        raise NoQuotient


def noted_quotient(number: Any, value: Quotient) -> Any:
    """Note on a symbolic float which quotient it is, and return it."""
    if isinstance(number, torch.SymFloat):
        setattr(number, _NOTE, value)
    return number


def quotient(value: Any) -> Quotient:
    """Write a number as a quotient.

    Raises `NoQuotient`: it is symbolic and no integer, or a float with a large denominator.

    >>> quotient(0.5)
    Quotient(numerator=1, denominator=2)
    """
    if isinstance(value, Quotient):
        return value
    if isinstance(value, (int, torch.SymInt)):
        return Quotient(value, 1)
    noted: Quotient | None = getattr(value, _NOTE, None) if isinstance(value, torch.SymFloat) else None
    if noted is not None:
        return noted
    if not isinstance(value, float) or not math.isfinite(value):
        raise NoQuotient
    exact = Fraction(value)
    if exact.denominator > _GREATEST_DENOMINATOR:
        raise NoQuotient
    return Quotient(exact.numerator, exact.denominator)


def least(size: Any) -> int | float:
    """Return a number that a size is never below.

    >>> least(3)
    3
    """
    if not isinstance(size, torch.SymInt):
        return size  # type: ignore[no-any-return]  # a number
    lower = bound_sympy(size.node.expr, size.node.shape_env.var_to_range).lower
    return int(lower) if lower.is_Integer else float("-inf")


def is_within(size: Any, limit: int) -> bool:
    """Whether the magnitude of a number is at most `limit`, for every number of timesteps that is served.

    >>> is_within(Quotient(-9, 2), 8), is_within(0.5, 8)
    (False, True)
    """
    if isinstance(size, Quotient):
        return is_within(size.numerator, limit)
    if not isinstance(size, torch.SymInt):
        return isinstance(size, torch.SymBool) or abs(size) <= limit
    known = size.node.shape_env.var_to_range.items()
    ranges = {symbol: ValueRanges(own.lower, min(own.upper, _MOST_TIMESTEPS)) for symbol, own in known}
    bounds = bound_sympy(size.node.expr, ranges)
    return bool(-limit <= bounds.lower and bounds.upper <= limit)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{f"__{name}__": getattr(operator, name) for name in ("truediv", "add", "sub", "mul")},
    "__radd__": lambda a, b: b + a,
    "__rsub__": lambda a, b: b - a,
    "__rmul__": lambda a, b: b * a,
}
_ROUNDINGS: dict[str, Callable[[Any], Any]] = {"__floor__": math.floor, "__ceil__": math.ceil, "__trunc__": math.trunc}


def followed_quotients() -> AbstractContextManager[None]:
    """Note on floats of sizes which quotients they are, and round those exactly."""
    ours: list[tuple[Any, ...]] = [
        *((kind, name, _computed, f) for kind in (torch.SymInt, torch.SymFloat) for name, f in _OPERATORS.items()),
        *((torch.SymFloat, name, _rounded, rounding) for name, rounding in _ROUNDINGS.items()),
        *((torch.SymInt, name, lambda own, original: own) for name in _ROUNDINGS),
        *((torch.SymInt, name, _repeating) for name in ("__mul__", "__rmul__")),
    ]
    # one after the other: the last two are called around those of the first line
    return replaced_each((kind, name, partialmethod(f, getattr(kind, name), *more)) for kind, name, f, *more in ours)


def _computed(own: Any, original: Callable[..., Any], function: Callable[[Any, Any], Any], other: Any) -> Any:
    result = original(own, other)
    if isinstance(result, torch.SymFloat):
        with contextlib.suppress(NoQuotient):
            return noted_quotient(result, function(quotient(own), quotient(other)))
    return result


def _repeating(own: Any, original: Callable[..., Any], other: Any) -> Any:
    """Multiply a list or tuple of one tensor by a size."""
    is_one = isinstance(other, (list, tuple)) and len(other) == 1 and isinstance(other[0], torch.Tensor)
    return RepeatedList(other[0], own) if is_one else original(own, other)


def _rounded(own: Any, original: Callable[..., Any], function: Callable[[Any], Any]) -> Any:
    try:
        return function(quotient(own))
    except NoQuotient:
        return original(own)


class SymbolicArray(np.ndarray[Any, Any]):
    """Array of numbers of which some are symbolic: a cast to integers leaves them so."""

    def astype(self, dtype: Any, *arguments: Any, **options: Any) -> Any:
        """Return the array as it has this type: sizes are integers, and floats of sizes stay."""
        kind, size = np.dtype(dtype).kind, np.dtype(dtype).itemsize
        if kind not in "iufO":
            return super().astype(dtype, *arguments, **options)
        if size < (8 if kind == "f" else 4):
            raise LoweringError(
                f"numbers of the timesteps are computed in numpy's {np.dtype(dtype)}{source_suffix(calling_line())}, "
                "which rounds or wraps them: use float64 or int64"
            )
        result = self.copy()
        for place in np.ndindex(self.shape):
            result[place] = torch.sym_int(self[place]) if kind in "iu" else self[place]
        return result


class RepeatedList(list[torch.Tensor]):
    """A list of one tensor, repeated a symbolic number of times; read as a list, it has as many as the trace."""

    def __init__(self, item: torch.Tensor, times: torch.SymInt) -> None:
        super().__init__([item])
        self.item, self.times = item, times

    def whole(self) -> list[torch.Tensor]:
        """Return the elements, whose number is then fixed."""
        return [*super().__iter__(), *[self.item] * (int(self.times) - super().__len__())]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.extend(self.whole()[super().__len__() :])
        super().__setitem__(index, value)

    def __len__(self) -> int:
        return int(self.times)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.whole())

    def __getitem__(self, index: Any) -> Any:
        return self.whole()[index]

    def __add__(self, other: list[Any]) -> list[Any]:
        return self.whole() + list(other)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return list(other) + self.whole()


def joined(name: str, tensors: RepeatedList, dim: int = 0) -> torch.Tensor:
    """Return `torch.stack` or `torch.cat` of a repeated tensor, by its name."""
    item = tensors.item
    if name == "stack":
        place = dim % (item.dim() + 1)
        sizes = [-1] * item.dim()
        return item.unsqueeze(place).expand(*sizes[:place], tensors.times, *sizes[place:])
    repeats: list[Any] = [1] * item.dim()
    repeats[dim % item.dim()] = tensors.times
    return item.repeat(*repeats)
