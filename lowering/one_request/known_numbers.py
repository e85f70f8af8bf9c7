"""Numbers that are known while one request is traced: its lengths, and what is computed from them.

They are kept beside their tensors as arrays of Python numbers and symbolic sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions

from .quotients import NoQuotient, Quotient, is_within, least, quotient
from .written_views import Fact

_SIDES = "_neuron_lstm_sides"


def compared(name: str, a: Any, b: Any) -> Any:
    """Compare two sizes by a function of `operator`, and note on the result what was compared."""
    result = getattr(operator, name)(indicator(a), indicator(b))
    if isinstance(result, torch.SymBool):
        if statically_known_true(result):
            return True
        setattr(result, _SIDES, (name, a, b))
    return result


def indicator(value: Any) -> Any:
    """Return a condition as 1 or 0; other values are returned as they are.

    Raises `NoQuotient`: the condition is no expression that is known for every number of timesteps.
    """
    if not isinstance(value, torch.SymBool):
        return int(value) if isinstance(value, bool) else value
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


_NUMBERS = Fact("numbers")
known_values = _NUMBERS.of
"""Return the known numbers of a tensor as an array of objects; None if they are not known."""


def with_known_values(tensor: torch.Tensor, values: Any) -> torch.Tensor:
    """Attach the known numbers to a tensor, and return it. They hold until something writes to its memory."""
    return _NUMBERS.note(tensor, np.array(values, dtype=object))


def known_number(tensor: object) -> Any:
    """Return the only number of a tensor; None if it is not known, or one of several."""
    known = known_values(tensor)
    return known.item() if known is not None and known.size == 1 else None


_FACTORIES = {"zeros", "ones", "empty", "full", "arange", "range"}
_SIZED = _FACTORIES | {
    *("new_zeros", "new_ones", "new_full", "new_empty", "view", "reshape", "expand", "repeat", "narrow", "select"),
    *("pad", "roll", "split", "tile", "unflatten", "broadcast_to", "topk"),
}


def with_symbols(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Use known tensors of no dimensions as numbers, in sizes and keys."""

    def symbol(value: Any) -> Any:
        known = known_values(value)
        if known is not None and known.shape == ():
            return known.item()
        if isinstance(value, slice):
            return slice(symbol(value.start), symbol(value.stop), symbol(value.step))
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return type(value)(symbol(item) for item in value)
        return value

    if name in _SIZED:
        own = name not in _FACTORIES and args and isinstance(args[0], torch.Tensor)
        first = args[:1] if own else ()
        return (*first, *(symbol(a) for a in args[len(first) :])), {k: symbol(v) for k, v in kwargs.items()}
    if name in ("__getitem__", "__setitem__"):
        return (args[0], symbol(args[1]), *args[2:]), kwargs
    return args, kwargs


_SAME = {"cpu", "clone", "__deepcopy__", "detach", "contiguous", "data", "cuda", "numpy"}


def _exact(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Compute with quotients where a number is no integer."""
    a, b = indicator(a), indicator(b)
    fractional = isinstance(a, (float, Quotient)) or isinstance(b, (float, Quotient))
    return function(quotient(a), quotient(b)) if fractional else function(a, b)


def _of_integers(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if isinstance(a, Quotient) or isinstance(b, Quotient):
        raise NoQuotient
    return function(a, b)


def _masked_bits(value: Any, mask: Any) -> Any:
    """Compute `value & mask` for the masks of the lowest bits."""
    if type(mask) is not int or mask & (mask + 1) or mask < 0 or not isinstance(value, (int, torch.SymInt)):
        raise NoQuotient
    return value % (mask + 1)


def _truncated_remainder(value: Any, divisor: Any) -> Any:
    if least(value) < 0 or not isinstance(divisor, int) or divisor <= 0:
        raise NoQuotient
    return value % divisor


def _divided(a: Any, b: Any) -> Quotient:
    return quotient(a).__truediv__(b)


def _rounded(function: Callable[[Any], Any], value: Any) -> Any:
    value = quotient(value) if isinstance(value, torch.SymFloat) else value
    return function(value) if isinstance(value, (Quotient, float)) else value


_ROUNDED = {name: partial(_rounded, getattr(math, name)) for name in ("floor", "ceil", "trunc")}
_EXACT: dict[str, Callable[[Any, Any], Any]] = {
    **{name: partial(_exact, getattr(operator, name)) for name in ("add", "sub", "mul", "floordiv")},
    "truediv": _divided,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **_EXACT,
    **{name: partial(_of_integers, getattr(operator, name)) for name in ("mod", "rshift")},
    **{name: partial(_of_integers, partial(compared, name)) for name in ("gt", "ge", "lt", "le", "eq", "ne")},
    "and": partial(_of_integers, _masked_bits),
    "fmod": partial(_of_integers, _truncated_remainder),
    "maximum": partial(_of_integers, torch.sym_max),
    "minimum": partial(_of_integers, torch.sym_min),
}
_TORCH_NAMES = {"floor_divide": "floordiv", "remainder": "mod", "bitwise_and": "and"}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": function for name, function in _BINARY.items()},
    **{f"__r{name}__": lambda a, b, own=own: own(b, a) for name, own in (*_EXACT.items(), ("mod", _BINARY["mod"]))},
    **{name: _BINARY[name] for name in ("add", "sub", "mul", "gt", "ge", "lt", "le", "eq", "ne", "fmod")},
    **{name: _BINARY[name] for name in ("maximum", "minimum")},
    **{name: _BINARY[own] for name, own in _TORCH_NAMES.items()},
    **dict.fromkeys(("neg", "__neg__"), operator.neg),
    **_ROUNDED,
}


def out_of_place(name: str) -> str | None:
    """Return the name of the function that computes what a function writes into its first argument.

    >>> out_of_place("sub_"), out_of_place("__isub__"), out_of_place("__sub__")
    ('sub', '__sub__', None)
    """
    if name == "__setitem__":
        return "setitem"
    if name.startswith("__"):
        plain = f"__{name[3:]}"
        return plain if name[2] == "i" and plain in _ARITHMETIC else None
    return name[:-1] if name.endswith("_") else None


def values_after(name: str, args: Any, kwargs: Any) -> Any:
    """Return the numbers of a call's result, if those of all its tensors are known."""
    try:
        return _values_after(out_of_place(name) or name, args, kwargs)
    except NoQuotient:
        return None


def _values_after(name: str, args: Any, kwargs: Any) -> Any:
    if not args or not isinstance(args[0], torch.Tensor):
        return _joined(args[0]) if name == "stack" and len(args) == 1 and not kwargs else None
    if name in ("to", "long", "int", "float", "double", "type", "type_as"):
        return known_values(args[0])
    tensors = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
    if any(known_values(tensor) is None for tensor in tensors):
        return None
    own, *others = [known_values(a) if isinstance(a, torch.Tensor) else a for a in args]
    if (own_rule := _RULES.get(name)) is not None:
        return own_rule(own, others, kwargs)
    if name not in _ARITHMETIC:
        return _of_one_number(name, own, others, kwargs)
    numbers = not kwargs and all(isinstance(o, (np.ndarray, int, float, torch.SymInt)) for o in others)
    return _elementwise(_ARITHMETIC[name], own, others) if numbers else None


def _joined(tensors: Any) -> Any:
    """Return the numbers of `torch.stack` of tensors."""
    parts = [known_values(tensor) for tensor in tensors] if isinstance(tensors, (list, tuple)) else []
    return np.stack(parts) if parts and all(part is not None for part in parts) else None


_LIMITS = {torch.int64: 2**63 - 1, torch.int32: 2**31 - 1, torch.float64: 2**53, torch.float32: 2**24}
"""The largest magnitude up to which a dtype holds every integer."""


def in_dtype(values: Any, dtype: torch.dtype) -> Any:
    """Return numbers as a tensor of a dtype has them; None if it rounds or wraps them."""
    try:
        if dtype in (torch.int64, torch.int32):
            values = _elementwise(lambda value: _ROUNDED["trunc"](indicator(value)), values, [])
        elif dtype == torch.bool:
            return _elementwise(_truth, values, [])
    except NoQuotient:
        return None
    if dtype == torch.uint8:
        return values if all(isinstance(value, int) and 0 <= value <= 255 for value in values.reshape(-1)) else None
    limit = _LIMITS.get(dtype)
    return values if limit is not None and all(is_within(value, limit) for value in values.reshape(-1)) else None


def _truth(value: Any) -> Any:
    return value if isinstance(value, (bool, torch.SymBool)) else _of_integers(partial(compared, "ne"), value, 0)


def in_python(values: Any) -> Any:
    """Return numbers as Python has them."""
    return _elementwise(plain, values, [])


def plain(number: Any) -> Any:
    """Return a number as Python has it."""
    return number.in_python() if isinstance(number, Quotient) else number


def _of_one_number(name: str, own: Any, others: list[Any], kwargs: Any) -> Any:
    """Return the result of reducing, sorting or reshaping one number."""
    if own.size != 1:
        return None
    whole = not others and not kwargs
    if whole and name in ("any", "all"):
        return _elementwise(_truth, own.reshape(()), [])
    if whole and name in ("max", "min", "amax", "amin", "sum", "prod"):
        return own.reshape(())
    if own.shape == (1,) and name in ("max", "min", "sort", "argsort"):
        place = np.array([0], dtype=object)
        return place if name == "argsort" else (own, place)
    # One number stays as it is, in a shape that the result tells.
    return own if name in ("index_select", "flip", "squeeze", "unsqueeze", "flatten", "view", "reshape") else None


def _clamped(own: Any, others: list[Any], kwargs: Any) -> Any:
    """Return numbers within bounds; sizes of timesteps are 1 or more anyway."""
    limits = {**dict(zip(("min", "max"), others, strict=False)), **kwargs}
    given = [limits.get(name) for name in ("min", "max")]
    bounds = [limit.reshape(-1)[0] if isinstance(limit, np.ndarray) and limit.size == 1 else limit for limit in given]
    if len(others) > 2 or limits.keys() - {"min", "max"} or any(isinstance(v, Quotient) for v in own.reshape(-1)):
        return None
    if any(bound is not None and not isinstance(bound, (int, torch.SymInt)) for bound in bounds):
        return None
    raised = own if bounds[0] is None else _elementwise(_at_least, own, [bounds[0]])
    return raised if bounds[1] is None else _elementwise(torch.sym_min, raised, [bounds[1]])


def _at_least(value: Any, smallest: Any) -> Any:
    is_size = isinstance(value, torch.SymInt) and bool(value.node.expr.is_Symbol)
    fits = isinstance(smallest, int) and (least(value) >= smallest or (smallest <= 1 and is_size))
    return value if fits else torch.sym_max(value, smallest)


def _chosen(own: Any, others: list[Any], kwargs: Any) -> Any:
    """Return numbers of `torch.where`, also as a method."""
    if len(others) != 2 or kwargs:
        return None
    is_condition = own.size and all(isinstance(value, (bool, torch.SymBool)) for value in own.reshape(-1))
    condition, first, second = (own, *others) if is_condition else (others[0], own, others[1])
    return _elementwise(_choice, np.asarray(condition, dtype=object), [first, second])


def _choice(condition: Any, first: Any, second: Any) -> Any:
    if isinstance(condition, bool):
        return first if condition else second
    if any(not isinstance(value, (int, torch.SymInt)) for value in (first, second)):
        raise NoQuotient
    return second + indicator(condition) * (first - second)


def _elementwise(function: Callable[..., Any], own: Any, others: list[Any]) -> Any:
    arrays = np.broadcast_arrays(own, *(np.asarray(other, dtype=object) for other in others))
    result = np.empty(arrays[0].shape, dtype=object)
    for place in np.ndindex(result.shape):
        result[place] = function(*(array[place] for array in arrays))
    return result


def _quotients(own: Any, others: list[Any], kwargs: Any) -> Any:
    """Divide, and round as `rounding_mode` says."""
    if kwargs.keys() - {"rounding_mode"}:
        return None
    exact, mode = _elementwise(_divided, own, others), kwargs.get("rounding_mode")
    return exact if mode is None else _elementwise(_ROUNDED[mode], exact, [])


def _element(own: Any, others: list[Any], kwargs: Any) -> Any:
    key = others[0]
    keys = key if isinstance(key, tuple) else (key,)
    if all(k is None or k is Ellipsis or isinstance(k, (int, slice)) for k in keys):
        return own[key]
    if isinstance(key, np.ndarray) and all(isinstance(k, int) for k in key.reshape(-1)):
        return own[key.astype(int)]
    return None


_RULES: dict[str, Callable[[Any, list[Any], Any], Any]] = {
    **dict.fromkeys(_SAME, lambda own, others, kwargs: own),
    **dict.fromkeys(("clamp", "clip", "clamp_min"), _clamped),
    "clamp_max": lambda own, others, kwargs: _clamped(own, [None, *others], kwargs),
    "where": _chosen,
    "ones_like": lambda own, others, kwargs: np.full(own.shape, 1, dtype=object),
    "zeros_like": lambda own, others, kwargs: np.full(own.shape, 0, dtype=object),
    **dict.fromkeys(("div", "divide", "true_divide"), _quotients),
    "__getitem__": _element,
}
"""Rules of functions of known tensors, by the numbers of the first one, and the other arguments."""
