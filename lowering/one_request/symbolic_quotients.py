"""Quotients of symbolic sizes in Python, as in `math.ceil(length / 2)` and numpy's functions.

A float of torch that is computed from sizes is rounded by functions that have no rule. So it is noted on each such
float which quotient it is, and rounding it gives an integer expression of sizes.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partialmethod
from typing import Any

import numpy as np
import torch

from ..errors import LoweringError, calling_line, source_suffix
from ..exporter.model_attributes import replaced_each
from .quotients import NoQuotient, noted_quotient, quotient

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "__truediv__": operator.truediv,
    **{f"__{name}__": getattr(operator, name) for name in ("add", "sub", "mul")},
    "__radd__": lambda a, b: b + a,
    "__rsub__": lambda a, b: b - a,
    "__rmul__": lambda a, b: b * a,
}
_ROUNDINGS: dict[str, Callable[[Any], Any]] = {"__floor__": math.floor, "__ceil__": math.ceil, "__trunc__": math.trunc}


def followed_quotients() -> AbstractContextManager[None]:
    """Note on floats of sizes which quotients they are, and round those exactly."""
    ours: list[tuple[type, str, Callable[..., Any]]] = [
        *((kind, name, _computed(f)) for kind in (torch.SymInt, torch.SymFloat) for name, f in _ARITHMETIC.items()),
        *((torch.SymFloat, name, _rounded(rounding)) for name, rounding in _ROUNDINGS.items()),
        *((torch.SymInt, name, lambda own, original: own) for name in _ROUNDINGS),
        *((torch.SymInt, name, _repeating) for name in ("__mul__", "__rmul__")),
    ]
    # one after the other: the last two are called around those of the first line
    return replaced_each((kind, name, partialmethod(function, getattr(kind, name))) for kind, name, function in ours)


def _computed(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def computed(own: Any, original: Callable[..., Any], other: Any) -> Any:
        result = original(own, other)
        if isinstance(result, torch.SymFloat):
            with contextlib.suppress(NoQuotient):
                value = function(quotient(own), quotient(other))
                return noted_quotient(result, value)
        return result

    return computed


def _repeating(own: Any, original: Callable[..., Any], other: Any) -> Any:
    """Multiply a list or tuple of one tensor by a size."""
    is_one = isinstance(other, (list, tuple)) and len(other) == 1 and isinstance(other[0], torch.Tensor)
    return RepeatedList(other[0], own) if is_one else original(own, other)


def _rounded(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def rounded(own: Any, original: Callable[..., Any]) -> Any:
        try:
            return function(quotient(own))
        except NoQuotient:
            return original(own)

    return rounded


class SymbolicArray(np.ndarray[Any, Any]):
    """Array of numbers of which some are symbolic: a cast to integers leaves them so."""

    def astype(self, dtype: Any, *arguments: Any, **options: Any) -> Any:
        """Return the array as it has this type: sizes are integers, and floats of sizes stay."""
        kind, size = np.dtype(dtype).kind, np.dtype(dtype).itemsize
        if kind not in "iufO":
            return super().astype(dtype, *arguments, **options)
        if size < (8 if kind == "f" else 4):
            raise LoweringError(
                f"numbers of the timesteps are computed in numpy's {np.dtype(dtype)}{source_suffix(calling_line())}, "
                "which rounds or wraps them: use float64 or int64"
            )
        result = self.copy()
        for place in np.ndindex(self.shape):
            result[place] = torch.sym_int(self[place]) if kind in "iu" else self[place]
        return result


def symbolic_array(values: Any) -> SymbolicArray:
    """Return known numbers as an array that numpy's functions take."""
    return np.asarray(values, dtype=object).view(SymbolicArray)


class RepeatedList(list[torch.Tensor]):
    """A list of one tensor, repeated a symbolic number of times; read as a list, it has as many as the trace."""

    def __init__(self, item: torch.Tensor, times: torch.SymInt) -> None:
        super().__init__([item])
        self.item, self.times = item, times

    def whole(self) -> list[torch.Tensor]:
        """Return the elements, whose number is then fixed."""
        return [self.item] * int(self.times)

    def __len__(self) -> int:
        return int(self.times)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.whole())

    def __getitem__(self, index: Any) -> Any:
        return self.whole()[index]

    def __add__(self, other: list[Any]) -> list[Any]:
        return self.whole() + list(other)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return list(other) + self.whole()


def joined(name: str, tensors: RepeatedList, dim: int = 0) -> torch.Tensor:
    """Return `torch.stack` or `torch.cat` of a repeated tensor, by its name."""
    item = tensors.item
    if name == "stack":
        place = dim % (item.dim() + 1)
        sizes = [-1] * item.dim()
        return item.unsqueeze(place).expand(*sizes[:place], tensors.times, *sizes[place:])
    repeats: list[Any] = [1] * item.dim()
    repeats[dim % item.dim()] = tensors.times
    return item.repeat(*repeats)
