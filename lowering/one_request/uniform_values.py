"""Tensors whose elements are all equal while one request is traced: its mask, and results of it.

Alone, a request has no padding. So a mask marks all of its timesteps, and ids of a declared range are never the id of
padding. What a model does in Python with such facts (`if mask.any()`, lengths counted from a mask) is followed exactly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .positions import compared_with_size
from .value_ranges import COMPARED, within_range
from .written_views import SAME_ELEMENTS, Fact

_UNIFORM = Fact("uniform")
_KEPT = SAME_ELEMENTS | {
    *("expand_as", "narrow", "select", "chunk", "split", "max", "min", "amax", "amin", "mean", "getitem", "unbind"),
    *("view_as", "movedim", "swapaxes", "diagonal", "ravel", "reversed"),
}
"""Functions whose results have the elements of their first argument, or a mean of them."""
_MOVED = {"getitem", "expand_as", "to", "type"}
"""Functions for which another tensor gives positions, a shape or a type, and no elements."""
_FILLED = {
    name: filled for filled, kind in enumerate(("zeros", "ones")) for name in (kind, f"{kind}_like", f"new_{kind}")
}
"""Functions that make a mask whose elements are all equal, with the number of each."""


_UNARY: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("bool", "any", "all"), bool),
    **dict.fromkeys(("float", "double", "half"), float),
    **dict.fromkeys(("long", "int", "byte"), int),
    **dict.fromkeys(("invert", "bitwise_not"), lambda value: not value if isinstance(value, bool) else ~value),
    "logical_not": operator.not_,
}
_WITH_NUMBER: dict[str, Callable[[Any, Any], Any]] = {
    **COMPARED,
    **{name: getattr(operator, name) for name in ("add", "sub", "mul")},
    "rsub": lambda value, number: number - value,
}


def with_uniform_value(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    """Record on a tensor that all of its elements are `value`, and return it."""
    _UNIFORM.note(tensor, value)
    return tensor


def uniform_value(tensor: object) -> Any:
    """Return the value of all elements of a tensor; None if it is not known."""
    return _UNIFORM.of(tensor)


def uniform_after(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> Any:
    """Return the value of all elements of a call's result; None if it is not known."""
    if name in _FILLED and isinstance(result, torch.Tensor) and result.dtype in (torch.bool, torch.uint8):
        return as_number(_FILLED[name], result.dtype)
    if not args or not isinstance(args[0], torch.Tensor):
        return None
    own, plain, others = uniform_value(args[0]), name.strip("_"), [*args[1:], *kwargs.values()]
    if own is None:
        known = within_range(plain, args[0], others)
        return compared_with_size(plain, args[0], others) if known is None else known
    computed = plain not in _MOVED and any(isinstance(other, torch.Tensor) for other in others)
    return None if computed else _of_uniform(plain, own, others)


def _of_uniform(name: str, own: Any, others: Sequence[Any]) -> Any:
    if name in _KEPT:
        return own
    if name in ("to", "type"):
        return _cast(own, others)
    if name in _UNARY:
        return _UNARY[name](own)
    number = others[0] if len(others) == 1 and isinstance(others[0], (bool, int, float)) else None
    return _WITH_NUMBER[name](own, number) if number is not None and name in _WITH_NUMBER else None


def _cast(own: Any, others: Sequence[Any]) -> Any:
    dtype = next((value for value in others if isinstance(value, torch.dtype)), None)
    if dtype is None:
        return own if all(isinstance(value, (str, bool, torch.device)) for value in others) else None
    return as_number(own, dtype)


def as_number(value: Any, dtype: torch.dtype) -> bool | int | float:
    """Return a value as a Python number of a tensor's type."""
    return bool(value) if dtype == torch.bool else float(value) if dtype.is_floating_point else int(value)
