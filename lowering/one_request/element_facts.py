"""Facts about the elements of tensors while one request is traced: bounds, positions, and one value of all of them.

Bounds are the declared ranges of inputs, and what follows from them. A program that depends on them holds only for
requests within them; others are refused.

Positions of timesteps, `torch.arange(T)`, are all below T. So a mask of lengths, `torch.arange(T) < lengths[:, None]`,
is true at every timestep of a request alone, and `torch.arange(T) == lengths[:, None] - 1` at the last one.

Alone, a request has no padding. So a mask marks all of its timesteps, and ids of a declared range are never the id of
padding. What a model does in Python with such facts (`if mask.any()`, lengths counted from a mask) is followed exactly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..packing.packed_placeholder import same_size
from .known_numbers import known_number
from .written_views import SAME_ELEMENTS, Fact

_RANGE = Fact("range")
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_MOVED = SAME_ELEMENTS | {"narrow", "select", "sort"}
"""Functions whose results have elements of their first argument only."""
_PICKED = {"getitem", "gather", "index_select", "take_along_dim"}
"""The same, where other tensors give the positions."""

EXACT = (torch.int64, torch.int32, torch.float32, torch.float64)
"""Types that no cast of small integers wraps or rounds into."""


@dataclass(frozen=True)
class ValueRange:
    """Bounds of all elements of a tensor."""

    bounds: tuple[float, float]
    use: Callable[[], None]
    """To be called when the graph depends on the bounds."""


value_range: Callable[[object], ValueRange | None] = _RANGE.of
"""Return the bounds of all elements of a tensor; None if they are not known."""


def with_range(tensor: torch.Tensor, bounds: tuple[float, float] | None, use: Callable[[], None]) -> torch.Tensor:
    """Record on a tensor that its elements are within bounds, if there are any, and return it."""
    known = None if bounds is None else _bounds_in(tensor.dtype, bounds)
    return tensor if known is None else _RANGE.note(tensor, ValueRange(known, use))


def _bounds_in(dtype: torch.dtype, bounds: tuple[float, float]) -> tuple[float, float] | None:
    """Return bounds as elements of a type have them, rounded as they are; None if the type may wrap them."""
    if not dtype.is_floating_point and not all(-(2**31) <= bound < 2**31 for bound in bounds):
        return bounds if dtype == torch.int64 else None
    low, high = (as_number(bound, dtype) if dtype.is_floating_point else bound for bound in bounds)
    return low, high


def note_range_after(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
    """Record the bounds of a call's result, if they are known."""
    known = _range_after(name, args, kwargs)
    if isinstance(result, tuple) and result:
        result = result[0]  # sorted values, before the order of them
    if known is not None and isinstance(result, torch.Tensor) and result.dtype in EXACT:
        with_range(result, known.bounds, known.use)


def _range_after(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ValueRange | None:
    if not args or not isinstance(args[0], torch.Tensor):
        return None
    own, plain = value_range(args[0]), name.strip("_")
    if plain == "sum" and args[0].dtype == torch.bool:
        return _counted(args[0], *args[1:], **kwargs)
    if own is None or (plain not in _PICKED and any(isinstance(other, torch.Tensor) for other in args[1:])):
        return None
    if plain in ("clamp", "clip", "clamp_min", "clamp_max"):
        return _clamped(own, plain, args[1:], kwargs)
    casts = plain in ("to", "type", "long", "int") and not args[0].dtype.is_floating_point
    return own if plain in _MOVED | _PICKED or casts else None


def _counted(tensor: torch.Tensor, dim: Any = None, *_: Any, **__: Any) -> ValueRange | None:
    """Return the bounds of how many elements along a dimension are true."""
    size = tensor.shape[dim] if isinstance(dim, int) else None
    return ValueRange((0, size), lambda: None) if type(size) is int else None


def _clamped(own: ValueRange, name: str, limits: Sequence[Any], named: Mapping[str, Any]) -> ValueRange | None:
    lowest, highest = (None, *limits, None)[:2] if name == "clamp_max" else (*limits, None, None)[:2]
    lowest, highest = named.get("min", lowest), named.get("max", highest)
    if not all(limit is None or type(limit) in (int, float) for limit in (lowest, highest)):
        return None
    bounds = [bound if lowest is None else max(bound, lowest) for bound in own.bounds]
    bounds = [bound if highest is None else min(bound, highest) for bound in bounds]
    return ValueRange((bounds[0], bounds[1]), own.use)


def within_range(name: str, tensor: torch.Tensor, others: Sequence[Any]) -> bool | None:
    """Return the result of comparing elements of a known range with a number, if it is the same for all."""
    known = value_range(tensor)
    if name == "bool" or (name in ("to", "type") and [*others] == [torch.bool]):
        name, others = "ne", [0]
    if known is None or name not in COMPARED or len(others) != 1 or not isinstance(others[0], (int, float)):
        return None
    # torch compares in one type: that of the tensor, or float32 for integers beside a number that is none.
    dtype = torch.float32 if isinstance(others[0], float) and not tensor.is_floating_point() else tensor.dtype
    numbers = (*known.bounds, others[0])
    low, high, number = (as_number(value, dtype) if dtype.is_floating_point else value for value in numbers)
    is_within = name in ("eq", "ne") and low <= number <= high
    results = {bool(COMPARED[name](bound, number)) for bound in (low, high)}
    if is_within or len(results) > 1:
        return None
    known.use()
    return results.pop()


_END, _IN_ORDER, _ONLY_TRUE, _COUNTED = (Fact(name) for name in ("end", "in_order", "only_true", "counted"))
only_true = _ONLY_TRUE.of
"""Return the place of the only element that is true, among all elements; None if it is not known."""
counted_numbers: Callable[[object], range | None] = _COUNTED.of
"""Return the numbers of a range; None for another tensor."""
_MOST_COUNTED = 64
"""Numbers of a range that is noted."""
_KEEPS_POSITIONS = SAME_ELEMENTS | {"expand_as", "to", "type", "type_as", "long", "int", "float", "double", "getitem"}
"""Functions whose results have elements of their first argument only."""
_BELOW = {"lt": True, "ge": False}
"""Results of comparing positions with the number of timesteps."""


def note_positions_after(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
    """Record the end of positions that a call returns, and the numbers of a short range."""
    if not isinstance(result, torch.Tensor):
        return
    if name == "arange":
        if (end := _end_of_range(args, kwargs)) is not None and result.dtype in EXACT:
            _END.note(result, end)
            _IN_ORDER.note(result, True)
        if args and all(type(value) is int for value in args) and not kwargs.keys() - {"device"}:
            _COUNTED.note(result, range(*args) if len(range(*args)) <= _MOST_COUNTED else None)
    elif args and name.strip("_") in _KEEPS_POSITIONS and (end := _END.of(args[0])) is not None:
        if result.dtype in EXACT:
            _END.note(result, end)
            _IN_ORDER.note(result, _IN_ORDER.of(args[0]) and _keeps_order(name, args))
    elif name in ("eq", "__eq__") and (place := _place(args, result)) is not None:
        _ONLY_TRUE.note(result, place)


def _keeps_order(name: str, args: Sequence[Any]) -> bool:
    keys = args[1] if name == "__getitem__" and isinstance(args[1], tuple) else args[1:]
    whole = all(key is None or (isinstance(key, slice) and key == slice(None)) for key in keys)
    return name != "flip" and (name != "__getitem__" or whole)


def _place(args: Sequence[Any], result: torch.Tensor) -> Any:
    """Return the first or the last position, if it is compared with one row of all positions; None for others."""
    positions, number = (args if _IN_ORDER.of(args[0]) else args[::-1]) if len(args) == 2 else (None, None)
    end, place = _END.of(positions), _number(number)
    if place is None or not _IN_ORDER.of(positions):
        return None
    rows = [size for size in result.shape if not same_size(size, end)]
    one_row = len(rows) == result.dim() - 1 and all(type(size) is int and size == 1 for size in rows)
    return place if one_row and (same_size(place, 0) or same_size(place, end - 1)) else None


def _end_of_range(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the end of `arange(T)` and `arange(0, T)`; None for others."""
    numbers = [*args, *(kwargs[name] for name in ("start", "end") if name in kwargs)]
    if kwargs.keys() & {"step"} or len(numbers) not in (1, 2) or (len(numbers) == 2 and numbers[0] != 0):
        return None
    return numbers[-1] if isinstance(numbers[-1], (int, torch.SymInt)) else None


def compared_with_size(name: str, first: Any, others: Sequence[Any]) -> bool | None:
    """Return the result of comparing positions with the number of timesteps; None for others."""
    if len(others) != 1:
        return None
    second = others[0]
    if _END.of(first) is None:
        first, second, name = second, first, {"gt": "lt", "le": "ge"}.get(name, "")
    end, number = _END.of(first), _number(second)
    return _BELOW.get(name) if end is not None and number is not None and same_size(number, end) else None


def _number(value: object) -> Any:
    """Return the only number of a tensor, or a number itself; None if it is not known."""
    return value if isinstance(value, torch.SymInt) else known_number(value)


_UNIFORM = Fact("uniform")
with_uniform_value = _UNIFORM.note
"""Record on a tensor that all of its elements are a value, and return it."""
uniform_value = _UNIFORM.of
"""Return the value of all elements of a tensor; None if it is not known."""
_KEPT = SAME_ELEMENTS | {
    *("expand_as", "narrow", "select", "chunk", "split", "max", "min", "amax", "amin", "mean", "getitem", "unbind"),
    *("view_as", "movedim", "swapaxes", "diagonal", "ravel", "reversed"),
}
"""Functions whose results have the elements of their first argument, or a mean of them."""
_NOT_COMPUTED = {"getitem", "expand_as", "to", "type"}
"""Functions for which another tensor gives positions, a shape or a type, and no elements."""
_FILLED = {n: filled for filled, kind in enumerate(("zeros", "ones")) for n in (kind, f"{kind}_like", f"new_{kind}")}
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
    computed = plain not in _NOT_COMPUTED and any(isinstance(other, torch.Tensor) for other in others)
    if args[0].is_floating_point():  # torch rounds numbers to the type of the tensor first
        others = [as_number(other, args[0].dtype) if type(other) in (int, float) else other for other in others]
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
    """Return a value as a Python number of a tensor's type, rounded to float32 where that is the type."""
    if dtype.is_floating_point:
        with np.errstate(over="ignore"):
            return float(np.float32(value)) if dtype == torch.float32 else float(value)
    return bool(value) if dtype == torch.bool else int(value)
