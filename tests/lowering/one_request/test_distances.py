"""Distances, which eager mode computes in one of two ways by the number of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower

CONFIG = one_input("[batch, time, 3]", length="[40]")
CODES = torch.randn(1, 30, 3, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    def __init__(self, distances: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.distances = distances

    def forward(self, x: Tensor) -> Tensor:
        return (self.distances(x) < 3).float()


@pytest.mark.few(1)
@pytest.mark.parametrize("other", [lambda x: x, lambda x: CODES[:, :4]], ids=["timesteps", "a short table"])
def test_distances_that_the_number_of_timesteps_rounds_otherwise_are_refused(other: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(LoweringError, match=r"rounds otherwise than for fewer .at \S+:\d+: .*compute_mode='donot"):
        lower(Model(lambda x: torch.cdist(x, other(x))).eval(), CONFIG)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "distances",
    [
        lambda x: torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").sum(2, keepdim=True),
        lambda x: torch.cdist(x, CODES),
        lambda x: torch.cdist(x, CODES[:, :4], p=1.0),
    ],
    ids=["without matrices", "a long table", "of absolute values"],
)
def test_distances_that_have_one_way_are_those_of_the_request_alone(distances: Callable[[Tensor], Tensor]) -> None:
    model = Model(distances).eval()
    x = torch.randn(1, 9, 3) + 1000
    padded = torch.cat([x, torch.full((1, 31, 3), 1e4)], 1)

    answer = lower(model, CONFIG).exported.module()(padded, torch.tensor([9]))[0]

    assert torch.equal(answer[:, :9], model(x))
