"""The work of planned batches of the observed lengths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.commands.tuning.planned_work import plan_sample
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import DynamicShape

SHAPE = DynamicShape(batch=8, length=99)
PLANNER = make_planner("sequence", SHAPE, CostModel.proportional(SHAPE))


@given(st.dictionaries(st.integers(1, 99), st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 20))
def test_no_less_is_computed_than_is_real(histogram: dict[int, int], rows: int) -> None:
    """The same arguments give the same figures, and nothing is padded beyond the longest."""
    work = plan_sample(histogram, PLANNER, rows, 99)

    assert work == plan_sample(histogram, PLANNER, rows, 99)
    assert work is not None
    assert 1 <= work.computed_per_useful <= max(histogram) / min(histogram)
    assert work.milliseconds > 0


def test_equal_lengths_need_no_padding() -> None:
    """Every call is full."""
    work = plan_sample({7: 3}, PLANNER, 8, 99)

    assert work is not None
    assert work.computed_per_useful == 1


def test_nothing_is_planned_without_a_sequence_that_is_served() -> None:
    """A count of 0 is no sequence."""
    assert plan_sample({7: 0, 120: 5}, PLANNER, 8, 99) is None
