"""Totals of each bucket length add up to those of the grid."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.commands.tuning.grid_evaluation import bucket_uses, plan_sample
from torchserve_neuron_lstm.bucketing.bucket_lengths import padding_stats
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, DynamicShape

histograms = st.dictionaries(st.integers(1, 99), st.integers(1, 9), min_size=1, max_size=12)
grids = st.sets(st.integers(1, 99), min_size=1, max_size=5).map(lambda sizes: tuple(sorted(sizes)))


@given(histograms, grids)
def test_buckets_add_up_to_the_grid(histogram: dict[int, int], lengths: tuple[int, ...]) -> None:
    uses = bucket_uses(histogram, lengths, "bucket", {}, rows=8)
    total = padding_stats(histogram, lengths)

    assert [use.length for use in uses] == list(lengths)
    assert sum(use.sequences for use in uses) == sum(histogram.values()) - total.refused
    assert sum(use.useful for use in uses) == total.useful
    assert sum(use.padded or 0 for use in uses) == total.computed - total.useful


def test_padding_is_as_the_engine_pads() -> None:
    assert [use.padded for use in bucket_uses({3: 2}, (4, 8), "none", {}, rows=8)] == [0, 0]
    assert [use.padded for use in bucket_uses({3: 2}, (4, 8), "call", {}, rows=8)] == [None, None]


def test_milliseconds_are_those_of_a_full_call() -> None:
    costs = {Bucket(8, 4): 1.0, Bucket(8, 12): 2.0}

    assert [use.milliseconds for use in bucket_uses({3: 2}, (4, 8), "bucket", costs, rows=8)] == [1.0, 1.5]


SHAPE = DynamicShape(batch=8, length=99)
PLANNER = make_planner("sequence", SHAPE, CostModel.proportional(SHAPE))


@given(histograms, st.integers(1, 20))
@example({7: 3}, 8)
def test_no_less_is_computed_than_is_real(histogram: dict[int, int], rows: int) -> None:
    work = plan_sample(histogram, PLANNER, rows, 99)

    assert work == plan_sample(histogram, PLANNER, rows, 99)
    assert work is not None
    assert 1 <= work.computed_per_useful <= max(histogram) / min(histogram)
    assert work.milliseconds > 0


def test_nothing_is_planned_without_a_sequence_that_is_served() -> None:
    assert plan_sample({7: 0, 120: 5}, PLANNER, 8, 99) is None
