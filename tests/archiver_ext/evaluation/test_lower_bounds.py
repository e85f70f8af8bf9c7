"""Lower bound of an engine's time, measured before anything is compiled for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.evaluation.lower_bounds import least_ms
from torchserve_neuron_lstm.bucketing.shapes import Bucket

ROWS, TIME = 32, 64
LENGTHS = st.lists(st.integers(1, TIME), min_size=1, max_size=2 * ROWS)
COSTS = st.floats(0, 10)


@given(LENGTHS, COSTS, COSTS, COSTS, st.randoms(use_true_random=False))
def test_no_division_of_a_batch_into_calls_takes_less(
    lengths: list[int], step: float, row: float, call: float, random: object
) -> None:
    """Calls of a group of rows with the length of its longest row, where each row and each call adds time."""

    def cost(rows: int, steps: int) -> float:
        return call + steps * (step + row * rows)

    chosen = random.choices(range(4), k=len(lengths))  # type: ignore[attr-defined]  # random.Random
    groups = [[length for length, own in zip(lengths, chosen, strict=True) if own == group] for group in range(4)]
    calls = [group[start : start + ROWS] for group in groups for start in range(0, len(group), ROWS)]
    taken = sum(cost(len(group), max(group)) for group in calls)
    measured = {Bucket(1, TIME): cost(1, TIME), Bucket(ROWS, TIME): cost(ROWS, TIME)}

    assert least_ms(lengths, measured) <= taken * (1 + 1e-9)


@given(LENGTHS, COSTS)
def test_an_engine_without_padding_is_bounded_by_its_own_time(lengths: list[int], row: float) -> None:
    """If each row takes time for its own timesteps alone, the bound is exact."""
    measured = {Bucket(1, TIME): row * TIME, Bucket(ROWS, TIME): row * TIME * ROWS}

    assert math.isclose(least_ms(lengths, measured), row * sum(lengths), abs_tol=1e-9)


@pytest.mark.parametrize("disturbed", [Bucket(1, TIME), Bucket(ROWS, TIME)])
def test_a_lone_row_that_was_disturbed_raises_no_bound(disturbed: Bucket) -> None:
    """A row alone counts no more than the full call with most rows."""
    measured = {Bucket(1, TIME): 1.0, Bucket(ROWS, TIME): 4.0}
    worse = {**measured, disturbed: 100.0}

    assert least_ms([TIME], worse) == (4.0 if disturbed.batch == 1 else 3.125)
