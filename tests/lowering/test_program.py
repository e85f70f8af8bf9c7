"""Declared inputs that forward() does not use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchserve_neuron_lstm.archiver_ext.package import unused_input_notes
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
    notes = unused_input_notes(program, config)
    assert "values of the input speaker" in notes[0]
    assert "check that forward() uses that argument" in notes[1]


def test_inputs_that_are_used_are_not_noted() -> None:
    program = lower(Careless(used=True), parse_config(YAML, "model-config.yaml"))

    assert unused_inputs(program) == ()
