"""Quotients of sizes, as `lengths / 2` has them: exact until they are rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils._sympy.value_ranges import bound_sympy

_GREATEST_DENOMINATOR = 2**16
"""More than any stride; other floats, such as 0.1, are no quotients of small integers."""
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
        return Quotient(self.numerator * o.denominator + o.numerator * denominator, denominator * o.denominator)

    def __sub__(self, other: Any) -> Quotient:
        return self.__add__(quotient(other).__neg__())

    def __neg__(self) -> Quotient:
        return Quotient(-self.numerator, self.denominator)

    def __mul__(self, other: Any) -> Quotient:
        o = quotient(other)
        return Quotient(self.numerator * o.numerator, self.denominator * o.denominator)

    def __truediv__(self, other: Any) -> Quotient:
        o = quotient(other)
        if not isinstance(o.numerator, int) or o.numerator <= 0:
            raise NoQuotient
        return self.__mul__(Quotient(o.denominator, o.numerator))

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
    node = size.node
    lower = bound_sympy(node.expr, node.shape_env.var_to_range).lower
    return int(lower) if lower.is_Integer else float("-inf")
