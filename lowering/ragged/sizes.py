"""Sizes as expressions of a request's timesteps, evaluated on integers and on tensors of lengths."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils._sympy import functions

SizeExpr: TypeAlias = sympy.Expr
"""A size of one request's tensor: an integer, or an expression of the symbol of its timesteps."""


class UnknownSize(Exception):
    """A size with a function or a symbol that has no rule; the message is the expression."""


def expression(size: object) -> SizeExpr:
    """Return a size of a traced graph as an expression.

    >>> expression(3)
    3
    """
    return simplified(size.node.expr) if isinstance(size, (torch.SymInt, torch.SymFloat)) else sympy.sympify(size)


def product(sizes: Sequence[object]) -> SizeExpr:
    """Multiply sizes as expressions, so that a comparison adds no guard to the traced graph.

    >>> product([2, 3])
    6
    """
    return sympy.Mul(*map(expression, sizes))


def in_python(number: object) -> Any:
    """Return a constant expression as a number of Python; others as they are."""
    if isinstance(number, sympy.Expr):
        return int(number) if number.is_Integer else float(number)
    return number


def evaluate(size: SizeExpr, timesteps: Any) -> Any:
    """Evaluate a size for numbers of timesteps: an int, a `SymInt`, or a tensor int64[B].

    >>> T = sympy.Symbol("T", integer=True, positive=True)
    >>> evaluate(functions.FloorDiv(T - 1, 2) + 1, 23)
    12
    >>> evaluate(functions.FloorDiv(T - 1, 2) + 1, torch.tensor([23, 1]))
    tensor([12,  1])
    >>> evaluate(functions.TruncToInt(0.7 * functions.ToFloat(T)), torch.tensor([90, 170]))  # as in Python
    tensor([ 62, 118])

    Raises `UnknownSize`: it has a function or a second symbol that has no rule.
    """
    if size.is_Float or size.is_Rational:  # an integer is rational, too
        return in_python(size)
    if size.is_Symbol:
        return timesteps
    if (function := _FUNCTIONS.get(type(size))) is None:
        raise UnknownSize(str(size))
    arguments = [evaluate(argument, timesteps) for argument in size.args]
    if any(isinstance(argument, float) for argument in arguments):
        arguments = [_in_double(argument) for argument in arguments]
    return function(*arguments)


def written(size: SizeExpr) -> str:
    """Write a size as an expression of `time`, as manifests have it.

    >>> T = sympy.Symbol("T", integer=True, positive=True)
    >>> written(functions.FloorDiv(T - 1, 2) + 1)
    '(time - 1)//2 + 1'
    >>> written(2 * T - 1)
    '2*time - 1'
    >>> written(T + functions.Mod(T, 2))
    'time + time%2'

    Raises `UnknownSize`: it has a function or a second symbol that has no rule.
    """
    if size.is_Symbol:
        return "time"
    if size.is_Add:
        number, terms = size.as_coeff_Add()
        sign = "" if number == 0 else f" {'-' if number < 0 else '+'} {abs(int(number))}"
        return " + ".join(map(written, sympy.Add.make_args(terms))) + sign
    if size.is_Mul:
        return "*".join(_factor(argument) for argument in size.args)
    if isinstance(size, (functions.FloorDiv, functions.CleanDiv, functions.Mod, functions.PythonMod)):
        sign = "%" if isinstance(size, (functions.Mod, functions.PythonMod)) else "//"
        return sign.join(_factor(argument) for argument in size.args)
    if isinstance(size, (functions.Max, functions.Min)):
        return f"{type(size).__name__}({', '.join(map(written, size.args))})"
    if size.is_Integer:
        return str(size)
    raise UnknownSize(str(size))


def _factor(size: SizeExpr) -> str:
    return f"({written(size)})" if size.args else written(size)


def is_ragged(size: SizeExpr) -> bool:
    """Whether a size depends on the number of timesteps."""
    return bool(size.free_symbols)


_TRIED = (*range(1, 600), *(step * 2**power for power in range(9, 20) for step in (2, 3)))
"""Numbers of timesteps at which a size is compared with that of one timestep more."""


@cache
def never_falls(size: SizeExpr) -> bool:
    """Whether a size is as great for every longer request, as far as `_TRIED` shows.

    >>> T = sympy.Symbol("T", integer=True, positive=True)
    >>> never_falls(functions.FloorDiv(T - 1, 2) + 1)
    True
    >>> never_falls(T - 2 * functions.FloorDiv(T, 3))
    False
    """
    return all(max(evaluate(size, n), 0) <= max(evaluate(size, n + 1), 0) for n in _TRIED)


def never_less(size: SizeExpr, other: SizeExpr) -> bool:
    """Whether a size is at least as great as another for every request, as far as `_TRIED` shows.

    >>> T = sympy.Symbol("T", integer=True, positive=True)
    >>> never_less(2 * T, T + 8), never_less(2 * T, 2 * T - 1)
    (False, True)
    """
    return all(evaluate(size, n) >= evaluate(other, n) for n in _TRIED)


def _folded(of_numbers: Callable[..., Any], of_tensors: Callable[..., Any], result: Any, *others: Any) -> Any:
    for value in others:
        tensors = [v for v in (result, value) if isinstance(v, torch.Tensor)]
        if tensors:
            pair = (v if isinstance(v, torch.Tensor) else torch.full_like(tensors[0], v) for v in (result, value))
            result = of_tensors(*pair)
        else:
            result = of_numbers(result, value)
    return result


def _in_double(value: Any) -> Any:
    """Return numbers as Python computes them: torch would take float32 for integers with a float."""
    return value.double() if isinstance(value, torch.Tensor) else value


def _divided(value: Any, divisor: Any) -> Any:
    return _in_double(value) / _in_double(divisor)


def _truncated(value: Any) -> Any:
    return value.long() if isinstance(value, torch.Tensor) else torch.sym_int(value)


_FUNCTIONS: Mapping[type, Callable[..., Any]] = {
    sympy.Add: lambda *terms: sum(terms[1:], terms[0]),
    sympy.Mul: lambda *factors: math.prod(factors[1:], start=factors[0]),
    sympy.Pow: operator.pow,
    functions.FloorDiv: operator.floordiv,
    functions.CleanDiv: operator.floordiv,
    functions.PythonMod: operator.mod,
    functions.Mod: operator.mod,
    functions.ModularIndexing: lambda base, divisor, modulus: (base // divisor) % modulus,
    functions.IntTrueDiv: _divided,
    functions.FloatTrueDiv: _divided,
    functions.ToFloat: lambda value: _in_double(value) * 1.0,
    functions.TruncToInt: _truncated,
    functions.FloorToInt: lambda value: _truncated(torch.floor(value) if isinstance(value, torch.Tensor) else value),
    functions.Max: partial(_folded, torch.sym_max, torch.maximum),
    functions.Min: partial(_folded, torch.sym_min, torch.minimum),
    functions.PowByNatural: operator.pow,
}


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
        return _divided_kind(size, known[0])
    degrees = [kind.degree for kind in known]
    return _limited(math.lcm(*(kind.period for kind in known)), sum(degrees) if size.is_Mul else max(degrees))


def _divided_kind(size: sympy.Expr, dividend: _Kind) -> _Kind | None:
    """Return the kind of a quotient or remainder by a positive constant."""
    divisor = size.args[1]
    if not divisor.is_Integer or divisor <= 0 or dividend.degree > 1:
        return None
    # In a class, the dividend is a + b * k with integers a and b, whose remainder repeats after `divisor` of k.
    period = dividend.period * (int(divisor) if dividend.degree else 1)
    return _limited(period, dividend.degree if isinstance(size, _QUOTIENTS) else 0)


def _limited(period: int, degree: int) -> _Kind | None:
    return _Kind(period, degree) if period <= _LONGEST_PERIOD else None
