"""Bounds of the elements of tensors while one request is traced.

They are the declared ranges of its inputs, and what follows from them. A program that depends on them holds only for
requests within them; others are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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


def with_range(
    tensor: torch.Tensor, bounds: tuple[float, float] | None, use: Callable[[], None] = lambda: None
) -> torch.Tensor:
    """Record on a tensor that its elements are within bounds, if there are any, and return it."""
    if bounds is not None:
        _RANGE.note(tensor, ValueRange(bounds, use))
    return tensor


def value_range(tensor: object) -> ValueRange | None:
    """Return the bounds of all elements of a tensor; None if they are not known."""
    known: ValueRange | None = _RANGE.of(tensor)
    return known


def note_range_after(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> None:
    """Record the bounds of a call's result, if they are known."""
    known = _range_after(name, args, kwargs)
    if isinstance(result, tuple) and result:
        result = result[0]  # sorted values, before the order of them
    if known is not None and isinstance(result, torch.Tensor) and result.dtype in EXACT:
        _RANGE.note(result, known)


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
    if known is None or name not in COMPARED or len(others) != 1 or not isinstance(others[0], (int, float)):
        return None
    (low, high), number = known.bounds, others[0]
    is_within = name in ("eq", "ne") and low <= number <= high
    results = {bool(COMPARED[name](bound, number)) for bound in known.bounds}
    if is_within or len(results) > 1:
        return None
    known.use()
    return results.pop()
