"""Numbers that are known while one request is traced: its lengths, and what is computed from them.

They are kept beside their tensors as arrays of Python numbers and symbolic sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

_KNOWN = "_neuron_lstm_known"


def with_known_values(tensor: torch.Tensor, values: Any) -> torch.Tensor:
    """Note the numbers of a tensor on it, and return it."""
    setattr(tensor, _KNOWN, np.array(values, dtype=object))
    return tensor


def known_values(tensor: object) -> Any:
    """Return the known numbers of a tensor as an array of objects; None if they are not known."""
    return getattr(tensor, _KNOWN, None) if isinstance(tensor, torch.Tensor) else None


_FACTORIES = {"zeros", "ones", "empty", "full", "arange", "range"}
_SIZED = {
    *_FACTORIES,
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "view",
    "reshape",
    "expand",
    "repeat",
    "narrow",
    "select",
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


_SAME = {"to", "cpu", "clone", "detach", "contiguous", "long", "int", "type", "data", "cuda", "numpy", "type_as"}
_BINARY = ("add", "sub", "mul", "floordiv", "truediv", "mod", "gt", "ge", "lt", "le", "eq", "ne")
_TORCH_NAMES = {"floor_divide": "floordiv", "div": "truediv", "true_divide": "truediv", "remainder": "mod"}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": getattr(operator, name) for name in (*_BINARY, "neg")},
    **{f"__r{name}__": lambda a, b, name=name: getattr(operator, name)(b, a) for name in _BINARY[:6]},
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "gt", "ge", "lt", "le", "eq", "ne", "neg")},
    **{name: getattr(operator, own) for name, own in _TORCH_NAMES.items()},
}


def values_after(name: str, args: Any, kwargs: Any) -> Any:
    """Return the numbers of a call's result, if those of all its tensors are known."""
    tensors = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
    in_a_list = not args or not isinstance(args[0], torch.Tensor)
    if in_a_list or any(known_values(tensor) is None for tensor in tensors):
        return None
    own, *others = [known_values(a) if isinstance(a, torch.Tensor) else a for a in args]
    if name in _SAME:
        return own
    if name == "__getitem__":
        return _element(own, others[0])
    if name in ("clamp", "clip", "clamp_min"):
        return _at_least(own, others, kwargs)
    if name in _ARITHMETIC:
        numbers = not kwargs and all(isinstance(o, (np.ndarray, int, float, torch.SymInt)) for o in others)
        return _elementwise(_ARITHMETIC[name], own, others) if numbers else None
    return _of_one_number(name, own, whole=not others and not kwargs) if own.size == 1 else None


def _of_one_number(name: str, own: Any, *, whole: bool) -> Any:
    """Return the result of reducing, sorting or reshaping one number."""
    if whole and name in ("max", "min", "amax", "amin", "sum", "any", "all", "prod"):
        return own.reshape(())
    if own.shape == (1,) and name in ("max", "min", "sort", "argsort"):
        place = np.array([0], dtype=object)
        return place if name == "argsort" else (own, place)
    if name in ("index_select", "flip"):
        return own
    shapes = {"squeeze": (), "unsqueeze": (1, 1), "flatten": (1,), "view": (1,), "reshape": (1,)}
    return own.reshape(shapes[name]) if name in shapes else None


def _at_least(own: Any, others: list[Any], kwargs: Any) -> Any:
    """Return numbers of at least one bound; sizes of timesteps are 1 or more anyway."""
    bounds = [*others, *kwargs.values()]
    if len(bounds) != 1 or not isinstance(bounds[0], int) or set(kwargs) - {"min"}:
        return None
    smallest = bounds[0]
    unbound = smallest <= 1 and all(isinstance(v, torch.SymInt) and v.node.expr.is_Symbol for v in own.reshape(-1))
    return own if unbound else _elementwise(torch.sym_max, own, [smallest])


def _elementwise(function: Callable[..., Any], own: Any, others: list[Any]) -> Any:
    arrays = np.broadcast_arrays(own, *(np.asarray(other, dtype=object) for other in others))
    result = np.empty(arrays[0].shape, dtype=object)
    for place in np.ndindex(result.shape):
        result[place] = function(*(array[place] for array in arrays))
    return result


def _element(own: Any, key: Any) -> Any:
    keys = key if isinstance(key, tuple) else (key,)
    if all(k is None or k is Ellipsis or isinstance(k, (int, slice)) for k in keys):
        return own[key]
    if isinstance(key, np.ndarray) and all(isinstance(k, int) for k in key.reshape(-1)):
        return own[key.astype(int)]
    return None
