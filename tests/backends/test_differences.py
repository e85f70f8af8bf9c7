"""The difference of two tensors."""

from __future__ import annotations

import math

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.backends.differences import difference


@given(st.floats(allow_nan=True), st.floats(allow_nan=True))
@example(math.nan, 1.0)
@example(1.0, math.nan)
def test_a_difference_is_finite_only_between_finite_numbers_or_equals(ours: float, theirs: float) -> None:
    a, b = torch.tensor([ours], dtype=torch.float64), torch.tensor([theirs], dtype=torch.float64)
    error, ratio = difference(a, b, (1e-5, 1e-5))
    same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))

    assert (error == 0 == ratio) if same else error > 0
    assert same or bool(torch.isfinite(a) & torch.isfinite(b)) or error == ratio == float("inf")
