"""Operators that torch composes of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from computed import Computed
from input_configs import one_input
from torch import Tensor
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
