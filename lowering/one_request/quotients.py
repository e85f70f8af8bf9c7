"""Quotients of sizes, as `lengths / 2` has them: exact until they are rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

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
    ranges = {
        symbol: ValueRanges(bounds.lower, min(bounds.upper, _MOST_TIMESTEPS))
        for symbol, bounds in size.node.shape_env.var_to_range.items()
    }
    bounds = bound_sympy(size.node.expr, ranges)
    return bool(-limit <= bounds.lower and bounds.upper <= limit)
