"""Activation functions of torch in a model that is traced for one request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering.lower import lower_request

YAML = """\
neuron_lstm:
  inputs: {x: {dtype: float32, shape: [batch, time, 3]}}
  buckets: {batch: [1, 3], length: [4, 9]}
"""
ACTIVATIONS = (
    nn.CELU(0.5),
    nn.ELU(0.5),
    nn.GELU(),
    nn.GELU(approximate="tanh"),
    nn.GLU(1),
    nn.Hardshrink(),
    nn.Hardsigmoid(),
    nn.Hardswish(),
    nn.Hardtanh(-2.0, 0.5),
    nn.LeakyReLU(0.3),
    nn.LogSigmoid(),
    nn.LogSoftmax(-1),
    nn.Mish(),
    nn.PReLU(),
    nn.ReLU6(),
    nn.RReLU(),
    nn.SELU(),
    nn.SiLU(),
    nn.Softplus(0.5, 2.0),
    nn.Softshrink(),
    nn.Softsign(),
    nn.Tanhshrink(),
    nn.Threshold(0.1, 20.0),
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
    model = EachOfThem().eval()
    traced, _, _ = lower_request(model, parse_config(YAML, "model-config.yaml"))
    program = traced.exported.module()
    requests = [torch.randn(length, 3) for length in (9, 4, 1)]

    with torch.no_grad():
        (batch,) = program(pad_sequence(requests, batch_first=True), torch.tensor([9, 4, 1]))
        for row, request in zip(batch, requests, strict=True):
            torch.testing.assert_close(row[: len(request)], model(request[None])[0], atol=1e-5, rtol=1e-5)
