from __future__ import annotations

import math

import pytest

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.grid import Bucket, BucketGrid


@pytest.mark.parametrize("milliseconds", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_that_is_no_positive_number_is_refused(milliseconds: float) -> None:
    """The message names the bucket and the value."""
    with pytest.raises(
        ValueError, match=rf"bucket 4 x 16 must be a positive number of milliseconds, got {milliseconds}"
    ):
        CostModel({Bucket(4, 16): milliseconds})


def test_the_stand_in_grows_with_the_bucket_and_charges_for_the_call() -> None:
    """Two calls of half the cells cost more than one call of all."""
    cost = CostModel.proportional(BucketGrid((2, 4), (8, 16)))

    assert cost.of(Bucket(2, 8)) < cost.of(Bucket(4, 8)) < cost.of(Bucket(4, 16))
    assert 2 * cost.of(Bucket(2, 16)) > cost.of(Bucket(4, 16))
