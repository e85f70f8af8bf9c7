"""Equality of sizes with quotients and remainders, proved for every number of timesteps.

A size that is made of the timesteps T by sums, products, and quotients and remainders by constants is a polynomial of
T in each residue class of some period. So two such sizes are equal everywhere if they are equal at one point more than
their degree in each class. Sympy proves few of these identities: `2 * ((T + T % 2) // 2) == T + T % 2` is one that it
does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import sympy
from torch.utils._sympy import functions

_LONGEST_PERIOD = 1024
_QUOTIENTS = (functions.FloorDiv, functions.CleanDiv)
_REMAINDERS = (functions.Mod, functions.PythonMod)
_SAMPLES = (5, 1009, 2003)
"""Timesteps at which a quotient of two sizes is computed before it is proved to be constant."""


@dataclass(frozen=True)
class _Kind:
    """A polynomial of the degree `degree` or less in each residue class modulo `period`."""

    period: int
    degree: int


def are_equal(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Whether two sizes are equal for every number of timesteps.

    >>> T = sympy.Symbol("T", integer=True, positive=True)
    >>> are_equal(2 * functions.FloorDiv(T + functions.Mod(T, 2), 2), T + functions.Mod(T, 2))
    True
    >>> are_equal(2 * functions.FloorDiv(T, 2), T)
    False
    """
    if first == second:
        return True
    kinds = [kind for size in (first, second) if (kind := _kind(size)) is not None]
    symbols = first.free_symbols | second.free_symbols
    if len(kinds) < 2 or len(symbols) > 1:
        return bool(sympy.simplify(first - second) == 0)
    period = math.lcm(*(kind.period for kind in kinds))
    degree = max(kind.degree for kind in kinds)
    symbol = next(iter(symbols), sympy.Symbol("T"))
    points = range(1, period * (degree + 1) + 1) if symbols else (1,)
    return all(_at(first, symbol, point) == _at(second, symbol, point) for point in points)


@cache
def simplified(size: sympy.Expr) -> sympy.Expr:
    """Return a size with quotients of sizes that are constant replaced by that constant.

    >>> T = sympy.Symbol("T", integer=True, positive=True)
    >>> even = T + functions.Mod(T, 2)
    >>> simplified(10 * functions.FloorDiv(even, functions.FloorDiv(even, 2)))
    20
    """
    if not size.free_symbols or not size.args:
        return size
    own = size.func(*(simplified(argument) for argument in size.args))
    if isinstance(own, _QUOTIENTS) and own.args[1].free_symbols:
        return _constant_quotient(*own.args) or own
    return own


def _constant_quotient(dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
    """Return the number that the quotient of two sizes always is; None if there is none."""
    (symbol, *others) = dividend.free_symbols | divisor.free_symbols
    values = [(_at(dividend, symbol, point), _at(divisor, symbol, point)) for point in _SAMPLES] if not others else []
    quotients = {a / b for a, b in values if b}
    (quotient, *more) = quotients or {None}
    if quotient is None or more or not quotient.is_Integer or not are_equal(dividend, quotient * divisor):
        return None
    return quotient  # where the divisor is 0, the exporter's graph has no such size


def _at(size: sympy.Expr, symbol: sympy.Symbol, timesteps: int) -> Any:
    return size.xreplace({symbol: sympy.Integer(timesteps)}) if size.free_symbols else size


@cache
def _kind(size: sympy.Expr) -> _Kind | None:
    """Return a period and a degree; None for a size of another kind, or with a period that is too long."""
    if size.is_Integer:
        return _Kind(1, 0)
    if size.is_Symbol:
        return _Kind(1, 1)
    if not isinstance(size, (sympy.Add, sympy.Mul, *_QUOTIENTS, *_REMAINDERS)):
        return None
    kinds = [_kind(argument) for argument in size.args]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    if isinstance(size, (*_QUOTIENTS, *_REMAINDERS)):
        return _divided(size, known[0])
    degrees = [kind.degree for kind in known]
    return _limited(math.lcm(*(kind.period for kind in known)), sum(degrees) if size.is_Mul else max(degrees))


def _divided(size: sympy.Expr, dividend: _Kind) -> _Kind | None:
    """Return the kind of a quotient or remainder by a positive constant."""
    divisor = size.args[1]
    if not divisor.is_Integer or divisor <= 0 or dividend.degree > 1:
        return None
    # In a class, the dividend is a + b * k with integers a and b, whose remainder repeats after `divisor` of k.
    period = dividend.period * (int(divisor) if dividend.degree else 1)
    return _limited(period, dividend.degree if isinstance(size, _QUOTIENTS) else 0)


def _limited(period: int, degree: int) -> _Kind | None:
    return _Kind(period, degree) if period <= _LONGEST_PERIOD else None
