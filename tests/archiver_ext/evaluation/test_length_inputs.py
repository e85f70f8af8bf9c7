"""Inputs of a model that are the lengths of its recurrences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from torchserve_neuron_lstm.archiver_ext.evaluation.length_inputs import length_inputs
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import lower

YAML = """\
neuron_lstm:
  inputs:
    sensor: {dtype: float32, shape: [batch, time, 4]}
    weather: {dtype: float32, shape: [batch, 6, 3]}
    hours: {dtype: DTYPE, shape: [batch], range: [1, 6]}
  buckets: {batch: [1, 2], length: [4]}
"""


class Pair(nn.Module):
    """A regression from two sequences of different length."""

    def __init__(self) -> None:
        super().__init__()
        self.sensor, self.weather = nn.GRU(4, 5, batch_first=True), nn.GRU(3, 5, batch_first=True)

    def forward(self, sensor: Tensor, weather: Tensor, hours: Tensor) -> Tensor:
        packed = pack_padded_sequence(weather, hours.long(), batch_first=True, enforce_sorted=False)
        return torch.cat([self.sensor(sensor)[1][-1], self.weather(packed)[1][-1]], 1)


class Scaled(Pair):
    """The same input is a factor, which may have any value."""

    def forward(self, sensor: Tensor, weather: Tensor, hours: Tensor) -> Tensor:
        return self.sensor(sensor)[1][-1] * hours[:, None] + self.weather(weather)[1][-1]  # type: ignore[no-any-return]  # a tensor


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_an_input_by_which_another_one_is_packed_holds_lengths(dtype: str) -> None:
    """Also if `forward()` casts it first."""
    config = parse_config(YAML.replace("DTYPE", dtype), "model-config.yaml")

    assert length_inputs(lower(Pair().eval(), config)) == {"hours"}


def test_an_input_that_stops_no_recurrence_holds_none() -> None:
    """Its values are not checked."""
    config = parse_config(YAML.replace("DTYPE", "int64"), "model-config.yaml")

    assert length_inputs(lower(Scaled().eval(), config)) == frozenset()
