"""Positions of timesteps, `torch.arange(T)`, while one request is traced: all are below T.

So a mask of lengths, `torch.arange(T) < lengths[:, None]`, is true at every timestep of a request alone, and
`torch.arange(T) == lengths[:, None] - 1` at the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..packing.padded_batch import same_size
from .known_numbers import known_number
from .value_ranges import EXACT
from .written_views import SAME_ELEMENTS, Fact

_END, _IN_ORDER, _ONLY_TRUE, _COUNTED = (Fact(name) for name in ("end", "in_order", "only_true", "counted"))
_MOVED = SAME_ELEMENTS | {
    *("expand_as", "to", "type", "type_as", "long", "int", "float", "double", "getitem"),
}
"""Functions whose results have elements of their first argument only."""
_BELOW = {"lt": True, "ge": False}
"""Results of comparing positions with the number of timesteps."""
_REFLECTED = {"gt": "lt", "le": "ge"}


def note_positions_after(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
    """Record the end of positions that a call returns, and the numbers of a short range."""
    if not isinstance(result, torch.Tensor):
        return
    if name == "arange":
        if (end := _counted(args, kwargs)) is not None and result.dtype in EXACT:
            _END.note(result, end)
            _IN_ORDER.note(result, True)
        if args and all(type(value) is int for value in args) and not kwargs.keys() - {"device"}:
            _COUNTED.note(result, [*range(*args)] if len(range(*args)) <= _MOST else None)
    elif args and name.strip("_") in _MOVED and (end := _END.of(args[0])) is not None:
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


def only_true(mask: object) -> Any:
    """Return the place of the only element that is true, among all elements; None if it is not known."""
    return _ONLY_TRUE.of(mask)


def _counted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
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
        first, second, name = second, first, _REFLECTED.get(name, "")
    end, number = _END.of(first), _number(second)
    return _BELOW.get(name) if end is not None and number is not None and same_size(number, end) else None


def _number(value: object) -> Any:
    """Return the only number of a tensor, or a number itself; None if it is not known."""
    return value if isinstance(value, torch.SymInt) else known_number(value)


_MOST = 64
"""Numbers of a range that is noted."""


def counted_numbers(tensor: object) -> list[int] | None:
    """Return the numbers of a range; None for another tensor."""
    numbers: list[int] | None = _COUNTED.of(tensor)
    return numbers if numbers is None else [*numbers]
