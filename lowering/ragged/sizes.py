"""Sizes as expressions of a request's timesteps, evaluated on integers and on tensors of lengths."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils._sympy import functions

from .size_identities import simplified

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
    result = expression(1)
    for size in sizes:
        result = result * expression(size)
    return result


def evaluate(size: SizeExpr, timesteps: Any) -> Any:
    """Evaluate a size for numbers of timesteps: an int, a `SymInt`, or a tensor int64[B].

    >>> T = sympy.Symbol("T", integer=True, positive=True)
    >>> evaluate(functions.FloorDiv(T - 1, 2) + 1, 23)
    12
    >>> evaluate(functions.FloorDiv(T - 1, 2) + 1, torch.tensor([23, 1]))
    tensor([12,  1])
    >>> evaluate(functions.TruncToInt(0.7 * functions.ToFloat(T)), torch.tensor([90, 170]))  # as in Python
    tensor([ 62, 118])

    Raises:
        UnknownSize: it has a function or a second symbol that has no rule.
    """
    if size.is_Integer:
        return int(size)
    if size.is_Float or size.is_Rational:
        return float(size)
    if size.is_Symbol:
        return timesteps
    function = _FUNCTIONS.get(type(size))
    if function is None:
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

    Raises:
        UnknownSize: it has a function or a second symbol that has no rule.
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


def _total(*terms: Any) -> Any:
    return sum(terms[1:], terms[0])


def _largest(*values: Any) -> Any:
    return _folded(torch.sym_max, torch.maximum, values)


def _smallest(*values: Any) -> Any:
    return _folded(torch.sym_min, torch.minimum, values)


def _folded(of_numbers: Callable[..., Any], of_tensors: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    result, *others = values
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


def _floored_modular(base: Any, divisor: Any, modulus: Any) -> Any:
    return (base // divisor) % modulus


_FUNCTIONS: Mapping[type, Callable[..., Any]] = {
    sympy.Add: _total,
    sympy.Mul: lambda *factors: math.prod(factors[1:], start=factors[0]),
    sympy.Pow: operator.pow,
    functions.FloorDiv: operator.floordiv,
    functions.CleanDiv: operator.floordiv,
    functions.PythonMod: operator.mod,
    functions.Mod: operator.mod,
    functions.ModularIndexing: _floored_modular,
    functions.IntTrueDiv: _divided,
    functions.FloatTrueDiv: _divided,
    functions.ToFloat: lambda value: _in_double(value) * 1.0,
    functions.TruncToInt: _truncated,
    functions.FloorToInt: lambda value: _truncated(torch.floor(value) if isinstance(value, torch.Tensor) else value),
    functions.Max: _largest,
    functions.Min: _smallest,
    functions.PowByNatural: operator.pow,
}
