from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.errors import LengthNotAccepted, SequenceTooLong
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid

from .strategies import grids


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 1), (1, 1), (-1,)])
def test_sizes_that_do_not_ascend_from_one_are_refused(sizes: tuple[int, ...]) -> None:
    """Both axes are checked, and the message has the given sizes."""
    with pytest.raises(ValueError, match=r"batches: expected (ascending sizes, each once|sizes of 1 or more), got \["):
        BucketGrid(batches=sizes, lengths=(1,))
    with pytest.raises(ValueError, match=r"lengths: expected (ascending sizes, each once|sizes of 1 or more), got \["):
        BucketGrid(batches=(1,), lengths=sizes)


@given(grids(), st.integers(1, 20))
def test_the_smallest_length_that_fits_is_found_or_the_request_is_refused(grid: BucketGrid, length: int) -> None:
    """A shorter bucket, or the largest in the place of a missing one, is never returned."""
    fitting = [edge for edge in grid.lengths if edge >= length]

    if fitting:
        assert grid.bucket_length_for(length) == fitting[0]
    else:
        with pytest.raises(SequenceTooLong) as refusal:
            grid.bucket_length_for(length)
        assert (refusal.value.length, refusal.value.available) == (length, grid.lengths)


def test_a_sequence_too_long_is_told_the_longest_bucket_and_all_buckets() -> None:
    """The client learns the accepted lengths."""
    with pytest.raises(SequenceTooLong, match=r"33 timesteps fits no bucket: the longest holds 32 \(buckets: 16, 32\)"):
        BucketGrid((1,), (16, 32)).bucket_length_for(33)
    with pytest.raises(SequenceTooLong, match=r"33 timesteps fits no bucket: the longest holds 32$"):
        BucketGrid((1,), (32,)).bucket_length_for(33)


@given(grids(), st.integers(1, 20))
def test_only_the_grids_own_lengths_are_exact(grid: BucketGrid, length: int) -> None:
    """A length between two buckets is refused with both lengths."""
    if length in grid.lengths:
        assert grid.require_bucket_length(length) == length
    else:
        with pytest.raises(LengthNotAccepted, match=f"a sequence of {length} timesteps is not accepted") as refusal:
            grid.require_bucket_length(length)
        assert (refusal.value.length, refusal.value.available) == (length, grid.lengths)
