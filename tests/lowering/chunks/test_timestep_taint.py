"""Timestep taint analysis: it may reject a model that keeps timesteps apart, but must not accept another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.chunks.timestep_rules import Tainted, TaintMap, transfer
from torchserve_neuron_lstm.lowering.exported_graph import output_nodes, symbolic_sizes, user_inputs

CONFIG = one_input("[batch, time, 4]")


class Model(nn.Module):
    def __init__(self, function: Callable[[Model, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.batch_norm = nn.BatchNorm1d(4)
        self.table = nn.Parameter(torch.randn(20, 4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def keeps_timesteps_apart(model: nn.Module, config: ServingConfig) -> bool:
    exported = lower(model.eval(), config).exported
    taints = TaintMap(symbolic_sizes(exported, config.input_specs), user_inputs(exported)[-1])
    for node in exported.graph.nodes:
        if node.op != "output":
            taints.of[node] = transfer(taints, node)
    return not any(isinstance(taints.of[node], Tainted) for node in output_nodes(exported))


def written(model: Model, x: Tensor) -> Tensor:
    out = x.new_zeros(x.size(0), 8)
    out[:, :4] = x.mean(1)
    return out


HARMLESS: dict[str, Callable[[Model, Tensor], Any]] = {
    "per step": lambda m, x: m.linear(torch.relu(m.norm(x))),
    "recurrence": lambda m, x: m.lstm(x),
    "final state": lambda m, x: m.lstm(x)[1][0][-1],
    "last step": lambda m, x: m.lstm(x)[0][:, -1],
    "last step as a slice": lambda m, x: m.lstm(x)[0][:, -1:],
    "last step of some features": lambda m, x: m.lstm(x)[0][:, -1, :2],
    "first step": lambda m, x: m.lstm(x)[0][:, 0],
    "residual": lambda m, x: x + m.lstm(x)[0],
    "softmax over features": lambda m, x: x.softmax(-1),
    "maximum over features": lambda m, x: x.amax(2),
    "transposed and back": lambda m, x: m.batch_norm(x.transpose(1, 2)).transpose(1, 2),
    "heads": lambda m, x: m.linear(x).view(x.size(0), x.size(1), 2, 2).sum(-1),
    "concatenated features": lambda m, x: torch.cat([x, m.lstm(x)[0]], -1),
    "positions": lambda m, x: x + torch.arange(x.size(1))[None, :, None],
    "a table of positions": lambda m, x: x + m.table[: x.size(1)],
    "running sum": lambda m, x: x.cumsum(1),
    "a vector for every step": lambda m, x: x + m.table[:1, None].repeat(x.size(0), x.size(1), 1),
    "repeated features": lambda m, x: m.lstm(x)[0].repeat(1, 1, 2),
    "two conditions": lambda m, x: torch.where((x > 0) & (x < 1), x, 0.0),
    "a feature picked at each step": lambda m, x: m.linear(x).gather(2, m.lstm(x)[0].argmax(2, keepdim=True)),
    "zeros of its shape": lambda m, x: x + torch.zeros(x.size(0), x.size(1), 4),
    "one-hot vectors": lambda m, x: m.lstm(nn.functional.one_hot((x[:, :, 0] > 0).long(), 4).float()),
    "in place": lambda m, x: m.linear(x).add_(1.0).relu_(),
    "divided by the number of steps": lambda m, x: m.lstm(x)[1][0][-1] / x.size(1),
    "a slice of a table by the number of steps": lambda m, x: m.lstm(x)[1][0][-1] + m.table[x.size(1) - 1 : x.size(1)],
    "filled with the number of steps": lambda m, x: m.lstm(x)[1][0][-1] + torch.full((x.size(0), 4), x.size(1)),
    "a row of a table by the number of steps": lambda m, x: m.lstm(x)[1][0][-1] + m.table[x.size(1) - 1],
    "counting down": lambda m, x: x + torch.arange(x.size(1), 0, -1)[None, :, None],
    "scrambled by a view": lambda m, x: x.view(x.size(1), x.size(0), 4).transpose(0, 1),
}
HARMFUL: dict[str, Callable[[Model, Tensor], Any]] = {
    "written into zeros": written,
    "mean over time": lambda m, x: x.mean(1),
    "sum over everything": lambda m, x: x.sum((1, 2)),
    "softmax over time": lambda m, x: x.softmax(1),
    "reversed": lambda m, x: x.flip(1),
    "a difference of steps": lambda m, x: x[:, 1:].sum(1),
    "attention": lambda m, x: (x @ x.transpose(1, 2)) @ x,
    "the step before the last": lambda m, x: x[:, -2],
    "every other step": lambda m, x: x[:, ::2].sum(1),
    "the last step of the reversed": lambda m, x: x.flip(1)[:, -1],
    "the bucket's last step by index": lambda m, x: x[
        torch.arange(x.size(0)), torch.ones(x.size(0)).long() * x.size(1) - 1
    ],
    "steps picked from others": lambda m, x: x.gather(1, x.argsort(1)),
    "a feature picked at some steps": lambda m, x: x.gather(2, x[:, -1:].argmax(2, keepdim=True)),
    "repeated steps": lambda m, x: x.repeat(1, 2, 1)[:, : x.size(1)],
    "convolution": lambda m, x: nn.functional.conv1d(x.transpose(1, 2), torch.ones(4, 4, 3), padding=1),
    "normalised over time": lambda m, x: nn.functional.normalize(x, dim=1),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("function", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_keeps_timesteps_apart_is_accepted(function: Callable[[Model, Tensor], Any]) -> None:
    assert keeps_timesteps_apart(Model(function), CONFIG)


@pytest.mark.few(5)
@pytest.mark.parametrize("function", HARMFUL.values(), ids=HARMFUL.keys())
def test_what_mixes_timesteps_is_not_accepted(function: Callable[[Model, Tensor], Any]) -> None:
    assert not keeps_timesteps_apart(Model(function), CONFIG)


class WithLengths(nn.Module):
    """The timestep that is `alpha` before the end of each row, by its index."""

    def __init__(self, alpha: int) -> None:
        super().__init__()
        self.alpha = alpha
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        read: Tensor = self.lstm(x)[0][torch.arange(x.size(0)), torch.sub(lengths, 1, alpha=self.alpha)]
        return read


@pytest.mark.parametrize(("alpha", "is_last"), [(1, True), (2, False)])
def test_a_factor_of_the_difference_makes_another_index(alpha: int, is_last: bool) -> None:
    """`lengths - 2` of one timestep is -1, the end of the request."""
    config = one_input("[batch, time, 4]", "lengths: lengths")

    assert keeps_timesteps_apart(WithLengths(alpha), config) == is_last
