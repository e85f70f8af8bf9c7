"""Products of half precision, whose instructions read the elements of two rows together at the end of a row."""

from __future__ import annotations

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower

INFINITE = float("inf")


class Projected(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, 8).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.bfloat16())
        return y.float()


@pytest.mark.few(1)
@pytest.mark.parametrize("features", [6, 32, 64])
def test_an_infinity_of_one_request_reaches_no_other(features: int) -> None:
    config = one_input(f"[batch, time, {features}]", length="[7]", batch="[4]")
    program = lower(Projected(features), config).exported.module()
    x = torch.randn(4, 7, features)
    x[2] = INFINITE

    (y,) = program(x, torch.full((4,), 7))

    assert y[[0, 1, 3]].isfinite().all()


@pytest.mark.few(1)
@pytest.mark.parametrize("features", [5, 34, 100])
def test_a_product_whose_rows_are_read_together_is_refused(features: int) -> None:
    config = one_input(f"[batch, time, {features}]", length="[7]", batch="[4]")

    with pytest.raises(
        LoweringError, match=r"half precision, of which .*test_half_precision.py:\d+: y: Tensor = self.layer"
    ):
        lower(Projected(features), config)
