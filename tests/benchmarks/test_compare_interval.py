"""The statistics of a comparison: intervals around the median of ratios, and verdicts."""

from __future__ import annotations

import random
from itertools import product

import pytest
from benchmarks.compare.interval import (
    CONFIDENCE,
    Interval,
    TooFewValues,
    coverage,
    fewest,
    median_interval,
    ratios,
    verdict,
)
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.lists(st.floats(0.1, 10), min_size=6, max_size=40)


@given(VALUES)
def test_an_interval_lies_around_the_median_and_reaches_its_confidence(values: list[float]) -> None:
    """Its ends are two of the values."""
    found = median_interval(values)

    assert found.low <= found.median <= found.high
    assert {found.low, found.high} <= set(values)
    assert found.coverage >= CONFIDENCE


@given(VALUES, st.randoms(use_true_random=False))
def test_an_interval_depends_on_the_values_alone(values: list[float], source: random.Random) -> None:
    """The order of values does not matter; the interval scales and mirrors with the values."""
    found = median_interval(values)

    assert median_interval(source.sample(values, len(values))) == found
    doubled = median_interval([2 * value for value in values])
    assert (doubled.low, doubled.median, doubled.high) == (2 * found.low, 2 * found.median, 2 * found.high)
    turned = median_interval([-value for value in values])
    assert (turned.low, turned.median, turned.high) == (-found.high, -found.median, -found.low)


@given(VALUES)
def test_one_wild_pair_moves_an_interval_no_further_than_to_its_neighbours(values: list[float]) -> None:
    """From 9 values on, the smallest and the largest value are not ends of the interval."""
    wild = [*values, *values, 1e9]
    assert median_interval(wild).high < 1e9


@pytest.mark.parametrize("count", range(2, 12))
def test_coverage_counts_the_ways_to_fall_around_the_median(count: int) -> None:
    """All patterns are counted: each value is above or below the true median with equal probability."""
    for rank in range(1, count // 2 + 1):
        held = [rank <= sum(below) <= count - rank for below in product([False, True], repeat=count)]
        assert coverage(count, rank) == pytest.approx(sum(held) / len(held))


def test_the_interval_of_twenty_pairs_is_between_the_sixth_and_the_fifteenth() -> None:
    """The documentation says the same; one rank further in would be below 95 %."""
    found = median_interval([float(value) for value in range(1, 21)])

    assert (found.low, found.median, found.high) == (6, 10.5, 15)
    assert found.coverage >= 0.95 > coverage(20, 7)


def test_too_few_pairs_have_no_interval() -> None:
    """Five pairs cannot reach 95 %."""
    assert fewest() == 6
    with pytest.raises(TooFewValues, match="at least 6"):
        median_interval([1.0] * 5)


def test_ratios_are_taken_pair_by_pair() -> None:
    """A slowdown of a whole pair is in both figures; a pair without its second value is refused."""
    assert ratios([1.0, 10.0], [2.0, 20.0]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [])


@given(st.lists(st.floats(0.5, 2), min_size=3, max_size=3).map(sorted), st.floats(0.5, 2))
def test_the_median_decides_and_the_interval_says_how_surely(ends: list[float], floor: float) -> None:
    """An interval on one side of the floor is certain; an interval across it is not."""
    low, middle, high = ends
    told = verdict(Interval(middle, low, high, 0.95), floor)

    assert told.startswith("slower") == (middle > floor)
    assert told.endswith("not certain") == (low <= floor < high)
