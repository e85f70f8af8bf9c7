import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.cost import CostModel, LinearCost
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, DynamicShape

from .strategies import any_shapes, free_problems, measurements

_MEASURED = ((2, 8, 4.0), (2, 16, 3.0), (6, 8, 2.0), (6, 16, 8.0), (6, 32, 6.0), (8, 8, 7.0))
NOISY = CostModel({Bucket(batch, length): milliseconds for batch, length, milliseconds in _MEASURED})


@pytest.mark.parametrize("milliseconds", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_that_is_no_positive_number_is_refused(milliseconds: float) -> None:
    with pytest.raises(ValueError, match=rf"bucket 4 x 16 must be a positive number of .*, got {milliseconds}"):
        CostModel({Bucket(4, 16): milliseconds})


def test_the_stand_in_grows_with_the_bucket_and_charges_for_the_call() -> None:
    cost = CostModel.proportional(BucketGrid((2, 4), (8, 16)))

    assert cost.of(Bucket(2, 8)) < cost.of(Bucket(4, 8)) < cost.of(Bucket(4, 16))
    assert 2 * cost.of(Bucket(2, 16)) > cost.of(Bucket(4, 16))


def test_nothing_measured_is_no_cost_model() -> None:
    with pytest.raises(ValueError, match="at least one bucket"):
        CostModel({})


@given(free_problems())
def test_a_measured_cost_is_told_as_it_was_measured(problem: tuple[DynamicShape, CostModel, list[int]]) -> None:
    _, cost, _ = problem

    assert all(cost.of(bucket) == milliseconds for bucket, milliseconds in cost.milliseconds.items())


@given(st.data())
def test_every_bucket_has_a_positive_cost(data: st.DataObject) -> None:
    cost = data.draw(measurements(data.draw(any_shapes())))
    batch = data.draw(st.integers(1, 1000))

    line = cost.line(batch)

    assert cost.of(Bucket(batch, data.draw(st.integers(1, 10_000)))) > 0
    assert line.call_ms >= 0
    assert line.step_ms >= 0
    assert line.call_ms + line.step_ms > 0


@given(st.data())
def test_a_cost_between_two_measurements_is_between_theirs(data: st.DataObject) -> None:
    low, high = data.draw(st.floats(0.1, 10)), data.draw(st.floats(0.1, 10))
    near, far = sorted(data.draw(st.lists(st.integers(1, 100), min_size=2, max_size=2, unique=True)))
    place = data.draw(st.integers(near, far))
    expected = low + (high - low) * (place - near) / (far - near)

    assert CostModel({Bucket(4, near): low, Bucket(4, far): high}).of(Bucket(4, place)) == pytest.approx(expected)
    assert CostModel({Bucket(near, 4): low, Bucket(far, 4): high}).of(Bucket(place, 4)) == pytest.approx(expected)


def test_a_single_measurement_counts_as_proportional() -> None:
    """A single measurement cannot separate the cost of the call from that of its work."""
    cost = CostModel({Bucket(4, 10): 2.0})

    assert cost.of(Bucket(4, 5)) == 1.0
    assert cost.of(Bucket(8, 10)) == 4.0
    assert cost.line(4) == LinearCost(call_ms=0.0, step_ms=0.2)


def test_beyond_the_last_measurement_no_cost_falls() -> None:
    """A long bucket that was measured as cheaper than a shorter one is noise, and is not extrapolated."""
    assert NOISY.of(Bucket(2, 1000)) == NOISY.of(Bucket(2, 16)) == 3.0
    assert NOISY.of(Bucket(6, 1000)) == NOISY.of(Bucket(6, 32)) == 6.0


def test_before_the_first_measurement_a_cost_falls_no_faster_than_in_proportion() -> None:
    """A steep line would reach zero before the bucket does."""
    steep = CostModel({Bucket(4, 8): 1.0, Bucket(4, 10): 9.0})

    assert steep.of(Bucket(4, 4)) == 0.5


@given(st.floats(0, 2), st.floats(0.01, 2), st.sets(st.integers(1, 200), min_size=2, max_size=5))
def test_the_line_through_exact_measurements_is_theirs(call: float, step: float, lengths: set[int]) -> None:
    line = CostModel({Bucket(3, length): call + step * length for length in lengths}).line(3)

    assert line.call_ms == pytest.approx(call, abs=1e-6)
    assert line.step_ms == pytest.approx(step, rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 10)), min_size=2, max_size=5, unique_by=lambda p: p[0]))
def test_no_line_of_the_allowed_ones_is_nearer(points: list[tuple[int, float]]) -> None:
    line = CostModel({Bucket(1, length): value for length, value in points}).line(1)

    def error(call: float, step: float) -> float:
        return sum(((call + step * length - value) / value) ** 2 for length, value in points)

    for call, step in ((1e-3, 0), (-1e-3, 0), (0, 1e-4), (0, -1e-4), (1e-3, -1e-4), (-1e-3, 1e-4)):
        other = LinearCost(line.call_ms + call, line.step_ms + step)
        if min(other) >= 0:
            assert error(*line) <= error(*other) * (1 + 1e-9) + 1e-12


def test_lines_of_rows_that_were_not_measured_are_between_those_that_were() -> None:
    cost = CostModel({Bucket(2, 10): 2.0, Bucket(2, 20): 3.0, Bucket(4, 10): 3.0, Bucket(4, 20): 5.0})

    assert cost.line(3).call_ms == pytest.approx(1.0)
    assert cost.line(3).step_ms == pytest.approx(0.15)


@given(any_shapes(), st.integers(1, 12), st.integers(1, 40))
def test_the_stand_in_is_the_same_for_any_shape_and_for_a_grid(shape: DynamicShape, batch: int, length: int) -> None:
    of_grid = CostModel.proportional(BucketGrid((batch,), (length,)))

    assert CostModel.proportional(shape).of(Bucket(batch, length)) == pytest.approx(of_grid.of(Bucket(batch, length)))
