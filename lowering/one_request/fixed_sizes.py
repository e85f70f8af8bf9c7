"""Sizes that forward() turns into numbers of Python, with their lines, while it is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partialmethod

import torch

from ..errors import calling_line

_CONVERSIONS = ("__index__", "__int__")


@contextlib.contextmanager
def noted_conversions(lines: list[str]) -> Iterator[None]:
    """Append the user's lines at which a symbolic size becomes a number, as in `np.ones(T)`."""

    def converted(own: torch.SymInt, original: Callable[[torch.SymInt], int]) -> int:
        line = calling_line() if own.node.maybe_as_int() is None else None
        lines.extend(() if line is None else (line,))
        return original(own)

    originals = {name: getattr(torch.SymInt, name) for name in _CONVERSIONS}
    for name, original in originals.items():
        setattr(torch.SymInt, name, partialmethod(converted, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.SymInt, name, original)
