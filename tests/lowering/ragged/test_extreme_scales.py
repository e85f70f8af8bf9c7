"""Statistics of very large and very small elements, of which torch squares none in single precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from computed import Computed
from input_configs import one_input
from torch import Tensor
from torch.nn import functional

from torchserve_neuron_lstm.lowering import lower

CONFIG = one_input("[batch, time, 4]", length="[8]", batch="[4]")
LENGTHS = (8, 1, 2, 5)
SCALES = (1e-25, 1.0, 1e5, 1e19, 1e25)
STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "deviation": lambda x: x.std(1),
    "deviation of features": lambda x: x.std(2, correction=0)[:, -1],
    "variance": lambda x: x.var((1, 2)),
    "norm": lambda x: x.norm(dim=1),
    "norm of a high order": lambda x: x.norm(p=8, dim=1),
    "cosine": lambda x: functional.cosine_similarity(x, x.flip(2), dim=1),
}


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:(std|var).*degrees of freedom")
@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_is_that_of_eager_mode_at_every_scale(name: str) -> None:
    model = Computed(STATISTICS[name])
    program = lower(model, CONFIG).exported.module()
    generator = torch.Generator().manual_seed(0)

    for scale in SCALES:
        x = torch.randn(4, 8, 4, generator=generator) * scale
        padded = torch.stack([row.clone() for row in x])
        for row, length in enumerate(LENGTHS):
            padded[row, length:] = 1e3
        (answers,) = program(padded, torch.tensor(LENGTHS))
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(
                answers[row], model(x[row : row + 1, :length])[0], rtol=1e-5, atol=0, equal_nan=True
            )
