"""Binary search over numbers for a condition that, once true, stays true."""

from __future__ import annotations

from collections.abc import Callable


def first_true(numbers: range, holds: Callable[[int], bool]) -> int:
    """Return the first of the numbers for which `holds`; `numbers.stop` if there is none.

    The step of the range must be 1. `bisect` takes a condition (`key`) only since Python 3.10.

    >>> first_true(range(1, 100), lambda number: number * number > 50)
    8
    >>> first_true(range(3), lambda number: False)
    3
    """
    low, high = numbers.start, max(numbers.start, numbers.stop)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
