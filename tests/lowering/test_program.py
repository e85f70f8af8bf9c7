from typing import Any

import pytest
import torch
from computed import Computed
from input_configs import one_input
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
    assert unused_inputs(lower(Careless(used=True), parse_config(YAML, "model-config.yaml"))) == ()


@pytest.mark.parametrize("fill", [torch.nan_to_num, lambda x: x.where(x.eq(x), 0), lambda x: x * x.nansum()])
def test_an_input_that_is_searched_for_nan_in_vain_is_noted(fill: Any) -> None:
    plain, declared = one_input("[batch, time]"), one_input("[batch, time], missing: nan")

    (note,) = input_notes(lower(Computed(fill), plain), plain)
    assert note.startswith("the model looks for NaN in the input x, but requests with NaN are refused")
    assert not [*input_notes(lower(Computed(fill), declared), declared)]
    assert not [*input_notes(lower(Computed(lambda x: x.log().nan_to_num()), plain), plain)]
