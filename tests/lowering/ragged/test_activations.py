"""Activation functions of torch in a model that is traced for one request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from input_configs import one_input
from ragged import lower_exact
from torch import Tensor, nn

ACTIVATIONS = (
    *(nn.CELU(0.5), nn.ELU(0.5), nn.GELU(), nn.GELU(approximate="tanh"), nn.GLU(1), nn.Hardshrink()),
    *(nn.Hardsigmoid(), nn.Hardswish(), nn.Hardtanh(-2.0, 0.5), nn.LeakyReLU(0.3), nn.LogSigmoid()),
    *(nn.LogSoftmax(-1), nn.Mish(), nn.PReLU(), nn.ReLU6(), nn.RReLU(), nn.SELU(), nn.SiLU()),
    *(nn.Softplus(0.5, 2.0), nn.Softshrink(), nn.Softsign(), nn.Tanhshrink(), nn.Threshold(0.1, 20.0)),
)


class EachOfThem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.activations = nn.ModuleList(ACTIVATIONS)

    def forward(self, x: Tensor) -> Any:
        # a mean over time cannot be proved for a padded batch, so that one request is traced alone
        x = self.gru(x)[0] * x.mean(1, keepdim=True).sum(-1, keepdim=True)
        return torch.cat([_features(activation, x) for activation in self.activations], -1)


def _features(activation: nn.Module, x: Tensor) -> Any:
    return activation(x.mT).mT if isinstance(activation, nn.GLU) else activation(x)


@pytest.mark.ci
def test_every_activation_function_is_served() -> None:
    lower_exact(EachOfThem().eval(), one_input("[batch, time, 3]"), [[9, 4, 1]])
