"""The units on which two traces of different numbers of timesteps agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch.fx import Node

from ..errors import UnknownLoop
from .recipe import Count, Recipe


def agreed(short: Recipe, long: Recipe, timesteps: tuple[int, int], steps: tuple[int, int]) -> Recipe:
    """Return the recipe on which those of two traces agree, with integers that follow from the timesteps.

    Raises:
        UnknownLoop: they differ otherwise.
    """

    def count(a: Count, b: Count) -> Count:
        slope, left = divmod(b.base - a.base, timesteps[1] - timesteps[0])
        if not left:
            return Count(a.base - slope * timesteps[0], slope)
        slope, left = divmod(b.base - a.base, steps[1] - steps[0])
        if not left:
            return Count(a.base - slope * steps[0], 0, slope)
        raise UnknownLoop(f"a size is {a.base} for {timesteps[0]} timesteps and {b.base} for {timesteps[1]}")

    if len(short.units) != len(long.units):
        raise UnknownLoop("other operators are called for other numbers of timesteps")
    merged: Recipe = _merged(short, long, count)
    return merged


def _merged(a: Any, b: Any, count: Callable[[Count, Count], Count]) -> Any:
    if isinstance(a, Count) and isinstance(b, Count):
        return count(a, b)
    if type(a) is type(b):
        if isinstance(a, tuple) and len(a) == len(b):
            return tuple(_merged(x, y, count) for x, y in zip(a, b, strict=True))
        if isinstance(a, dict) and a.keys() == b.keys():
            return {name: _merged(a[name], b[name], count) for name in a}
        if isinstance(a, Node):
            return a
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            names = [field.name for field in dataclasses.fields(a)]
            return type(a)(**{name: _merged(getattr(a, name), getattr(b, name), count) for name in names})
        if a == b:
            return a
    raise UnknownLoop(f"{a} for some timesteps is {b} for others")
