"""Declared inputs that forward() does not use."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchserve_neuron_lstm.archiver_ext.package import input_notes
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import unused_inputs

YAML = """
neuron_lstm:
  inputs:
    x: {dtype: float32, shape: [batch, time, 3]}
    speaker: {dtype: float32, shape: [batch, 2]}
    frames: {dtype: float32, shape: [batch, time]}
  lengths: lengths
  buckets: {batch: [1, 4], length: [4, 9]}
"""


class Careless(nn.Module):
    def __init__(self, *, used: bool) -> None:
        super().__init__()
        self.gru, self.used = nn.GRU(3, 2, batch_first=True), used

    def forward(self, x: Tensor, speaker: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
        y: Tensor = self.gru(x, speaker.unsqueeze(0) if self.used else None)[0]
        return y * frames.unsqueeze(-1) if self.used else y + torch.zeros(frames.shape[1], 1)


def test_inputs_whose_values_reach_no_output_are_noted() -> None:
    config = parse_config(YAML, "model-config.yaml")

    program = lower(Careless(used=False), config)

    assert unused_inputs(program) == ("speaker", "frames")
    notes = [*input_notes(program, config)]
    assert "values of the input speaker" in notes[0]
    assert "check that forward() uses that argument" in notes[1]


def test_inputs_that_are_used_are_not_noted() -> None:
    program = lower(Careless(used=True), parse_config(YAML, "model-config.yaml"))

    assert unused_inputs(program) == ()


class Filling(nn.Module):
    """A model that looks for NaN in `x`; in `frames` it computes, where a result may be NaN."""

    def forward(self, x: Tensor, speaker: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
        return self.filled(x).sum(-1) + torch.nan_to_num(frames.log()) + speaker.sum(1, keepdim=True)

    def filled(self, x: Tensor) -> Tensor:
        return torch.nan_to_num(x)


class Comparing(Filling):
    def filled(self, x: Tensor) -> Tensor:
        return torch.where(x != x, 0.0, x)  # noqa: PLR0124 - what is tested


class Summing(Filling):
    def filled(self, x: Tensor) -> Tensor:
        return x - x.nansum(1, keepdim=True)


@pytest.mark.parametrize("model", [Filling, Comparing, Summing])
def test_an_input_that_is_searched_for_nan_in_vain_is_noted(model: type[nn.Module]) -> None:
    config = parse_config(YAML, "model-config.yaml")
    declared = parse_config(YAML.replace("time, 3]", "time, 3], missing: nan"), "model-config.yaml")

    assert [*input_notes(lower(model(), config), config)] == [
        "the model looks for NaN in the input x, but requests with NaN are refused: write `missing: nan` there"
    ]
    assert [*input_notes(lower(model(), declared), declared)] == []
