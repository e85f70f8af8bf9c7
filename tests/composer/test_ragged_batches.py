"""Ragged batches: the extremes are among them, and garbage is in the padding only."""

from __future__ import annotations

import math

import torch
from composer.model import LONGEST
from composer.ragged_batches import GARBAGE, ROWS, bucket_batches, pad_with, ragged_batches

from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec

FLOATS = TensorSpec("x", "float32", ("time", "batch", 2))
IDS = TensorSpec("x", "int64", ("batch", "time"))


def test_batches_have_the_extremes_and_permutations() -> None:
    """All rows short, all rows long, one row, and the batch before in another order."""
    batches = list(ragged_batches(20, seed=0, any_length=True))

    assert [batch.lengths for batch in batches[:4]] == [(1,) * ROWS, (LONGEST,) * ROWS, (1,), (LONGEST,)]
    for place in (9, 14, 19):
        assert sorted(batches[place].lengths) == sorted(batches[place - 1].lengths)
    assert all(min(batch.lengths) == 1 for batch in batches[5:])
    assert any(batch.bad_row is not None for batch in batches)
    assert all(
        len(batch.lengths) <= batch.bucket.batch and max(batch.lengths) <= batch.bucket.length for batch in batches
    )


def test_batches_of_bucket_lengths_need_no_padding() -> None:
    """A model that must not be padded gets rows of the bucket's own length."""
    batches = list(bucket_batches(20, seed=0))

    assert {batch.bucket.length for batch in batches} == {4, LONGEST}
    assert all(set(batch.lengths) == {batch.bucket.length} for batch in batches)


def test_garbage_is_in_padding_and_dummy_rows_only() -> None:
    """Every real value is kept; all else is garbage."""
    items = [torch.ones(3, 2), torch.full((1, 2), 2.0)]
    for garbage in GARBAGE:
        batch = pad_with(garbage, 0)(items, FLOATS, Bucket(3, 4))

        assert torch.equal(batch[:3, 0], items[0])
        assert torch.equal(batch[:1, 1], items[1])
        rest = torch.cat([batch[3:, 0], batch[1:, 1], batch[:, 2]]).flatten()
        assert all(math.isnan(value) if math.isnan(garbage) else value == garbage for value in rest.tolist())


def test_garbage_ids_are_valid() -> None:
    """Ids in the padding are below the vocabulary, and not all the same."""
    batch = pad_with(float("nan"), 0)([torch.tensor([3, 4])], IDS, Bucket(8, 16))

    assert batch[0, :2].tolist() == [3, 4]
    assert 0 <= int(batch.min()) < int(batch.max()) < 11
