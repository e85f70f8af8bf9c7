"""Decompositions of operators, and distances, which eager mode computes in one of two ways by the number of rows."""

from collections.abc import Callable

import pytest
import torch
from computed import Computed
from input_configs import one_input
from torch import Tensor, nn
from torch.nn import functional

from torchserve_neuron_lstm.lowering import LoweringError, lower


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.multi_margin_loss(x[0], torch.ones(x.size(1), dtype=torch.long), reduction="none"),
        lambda x: functional.multilabel_margin_loss(x[0], torch.zeros_like(x[0]).long(), reduction="none"),
        lambda x: (
            functional.multi_margin_loss(x[0], x[0, :, 0].long() * 0) + functional.multilabel_soft_margin_loss(x, x)
        ),
        lambda x: functional.grid_sample(x[:, None], x[:, None, :, :2], align_corners=True),
    ],
    ids=["multi margin loss", "multilabel margin loss", "beside another loss", "grid sample"],
)
def test_an_operator_whose_kernel_leaves_out_nan_is_not_composed_of_those_that_keep_it(
    function: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(LoweringError, match=r"leaves out NaN, and has no rule .*test_decompositions.py"):
        lower(Computed(function), one_input("[batch, time, 4]", length="[8]", batch="[4]"))


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
