"""Cases of a parametrized test that `make test` leaves to `make test-all`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def with_long(functions: Iterable[Callable[..., Any]], *long: str) -> list[Any]:
    """Mark the functions of these names as long; raises `ValueError` if there is none of such a name."""
    given = list(functions)
    if unknown := set(long) - {function.__name__ for function in given}:
        raise ValueError(f"no case of these names: {sorted(unknown)}")
    return [pytest.param(one, marks=pytest.mark.long) if one.__name__ in long else one for one in given]
