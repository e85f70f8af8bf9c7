"""Conditions on sizes as numbers: 1 where a condition holds, else 0.

`torch.where(n % 2 == 0, n // 2, n // 2 + 1)` and `n // 2 + (n % 2 == 1)` are followed by them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy import functions

from .quotients import NoQuotient

_SIDES = "_neuron_lstm_sides"


def compared(name: str, a: Any, b: Any) -> Any:
    """Compare two sizes by a function of `operator`, and note on the result what was compared."""
    result = getattr(operator, name)(indicator(a), indicator(b))
    if isinstance(result, torch.SymBool):
        setattr(result, _SIDES, (name, a, b))
    return result


def indicator(value: Any) -> Any:
    """Return a condition as 1 or 0; other values are returned as they are.

    Raises:
        NoQuotient: the condition is no expression that is known for every number of timesteps.
    """
    if not isinstance(value, torch.SymBool):
        return value
    if statically_known_true(value):
        return 1
    if statically_known_true(torch.sym_not(value)):
        return 0
    name, a, b = getattr(value, _SIDES, (None, None, None))
    if name not in ("eq", "ne") or not isinstance(a, torch.SymInt) or type(b) is not int:
        raise NoQuotient
    remainder = a.node.expr
    if not isinstance(remainder, (functions.Mod, functions.PythonMod)) or not remainder.args[1].is_Integer:
        raise NoQuotient
    modulus = int(remainder.args[1])
    if modulus <= 0 or not 0 <= b < modulus:
        raise NoQuotient
    differs = ((a - b) % modulus + modulus - 1) // modulus if (b, modulus) != (0, 2) else a
    return differs if name == "ne" else 1 - differs
