"""The median of paired ratios with a distribution-free interval, and the verdict against a floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Literal

CONFIDENCE = 0.95

Verdict = Literal["within", "within, not certain", "slower, not certain", "slower"]


class TooFewValues(ValueError):
    """No interval of these values reaches the confidence."""


@dataclass(frozen=True)
class Interval:
    """A median and two of the values around it."""

    median: float
    low: float
    high: float
    coverage: float
    """The probability that such an interval holds the true median."""


def ratios(base: Sequence[float], head: Sequence[float]) -> tuple[float, ...]:
    """The ratio of the head to the base, pair by pair.

    >>> ratios([2.0, 4.0], [1.0, 8.0])
    (0.5, 2.0)
    """
    return tuple(changed / before for before, changed in zip(base, head, strict=True))


def coverage(count: int, rank: int) -> float:
    """The probability that the true median is between two order statistics.

    They are the `rank`-th smallest and the `rank`-th largest of `count` values.

    Each value is below the true median with probability 1/2, so the number of those below is binomial.

    >>> coverage(20, 6) > 0.95 > coverage(20, 7)
    True
    """
    outside: int = 2 * sum(comb(count, below) for below in range(rank))
    return 1 - outside / (1 << count)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The sample median with the shortest symmetric pair of order statistics that reaches the confidence.

    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    Interval(median=3.5, low=1.0, high=6.0, coverage=0.96875)

    Raises:
        TooFewValues: even the smallest and the largest value do not reach the confidence.
    """
    ordered, count = sorted(values), len(values)
    ranks = [rank for rank in range(1, count // 2 + 1) if coverage(count, rank) >= confidence]
    if not ranks:
        raise TooFewValues(
            f"{count} values have no {confidence:.0%} interval: at least {fewest(confidence)} are needed"
        )
    rank = ranks[-1]
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank], coverage(count, rank))


def fewest(confidence: float = CONFIDENCE) -> int:
    """The smallest number of values that have an interval.

    >>> fewest()
    6
    """
    count = 2
    while coverage(count, 1) < confidence:
        count += 1
    return count


def verdict(found: Interval, floor: float) -> Verdict:
    """Judge a ratio by its median and interval against its upper limit.

    The median decides whether the floor holds. The result is certain if the whole interval is on the same side.

    >>> verdict(Interval(1.01, 0.99, 1.02, 0.95), 1.03), verdict(Interval(1.02, 0.99, 1.04, 0.95), 1.03)
    ('within', 'within, not certain')
    >>> verdict(Interval(1.04, 1.02, 1.06, 0.95), 1.03), verdict(Interval(1.05, 1.04, 1.06, 0.95), 1.03)
    ('slower, not certain', 'slower')
    """
    if found.median <= floor:
        return "within" if found.high <= floor else "within, not certain"
    return "slower" if found.low > floor else "slower, not certain"
