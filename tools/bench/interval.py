"""The median of some ratios, with a distribution-free interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import NamedTuple

FEWEST = 6
"""Values that have an interval of 95 %."""


class Interval(NamedTuple):
    """A median and two of the values around it."""

    median: float
    low: float
    high: float


def coverage(count: int, rank: int) -> float:
    """Return the probability that the true median is between two values of the same rank.

    They are the `rank`-th smallest and the `rank`-th largest one.

    Each of the `count` values is below the true median with probability 1/2, so the number of those below is binomial.

    >>> coverage(20, 6) > 0.95 > coverage(20, 7), coverage(FEWEST, 1) > 0.95 > coverage(FEWEST - 1, 1)
    (True, True)
    """
    outside: int = 2 * sum(comb(count, below) for below in range(rank))
    return 1 - outside / (1 << count)


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median with the closest two values that hold the true one in 95 % of such samples.

    There must be `FEWEST` values. The two are of the same rank from below and from above.

    >>> median_interval([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    Interval(median=3.5, low=1.0, high=6.0)
    """
    ordered, count = sorted(values), len(values)
    rank = max(rank for rank in range(1, count // 2 + 1) if coverage(count, rank) >= 0.95)
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank])
