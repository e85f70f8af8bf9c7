"""Totals of each bucket length add up to those of the grid."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.commands.tuning.grid_evaluation import bucket_uses
from torchserve_neuron_lstm.bucketing.bucket_lengths import padding_stats

histograms = st.dictionaries(st.integers(1, 99), st.integers(1, 9), min_size=1, max_size=12)
grids = st.sets(st.integers(1, 99), min_size=1, max_size=5).map(lambda sizes: tuple(sorted(sizes)))


@given(histograms, grids)
def test_buckets_add_up_to_the_grid(histogram: dict[int, int], lengths: tuple[int, ...]) -> None:
    uses = bucket_uses(histogram, lengths, "bucket")
    total = padding_stats(histogram, lengths)

    assert [use.length for use in uses] == list(lengths)
    assert sum(use.sequences for use in uses) == sum(histogram.values()) - total.refused
    assert sum(use.useful for use in uses) == total.useful
    assert sum(use.padded or 0 for use in uses) == total.computed - total.useful


def test_padding_is_as_the_engine_pads() -> None:
    assert [use.padded for use in bucket_uses({3: 2}, (4, 8), "none")] == [0, 0]
    assert [use.padded for use in bucket_uses({3: 2}, (4, 8), "call")] == [None, None]
