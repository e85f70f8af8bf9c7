"""The test doubles check callers against AWS's documentation."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import neuron_doubles
import pytest
import torch
from torch import nn


@pytest.fixture
def neuronx() -> Iterator[Any]:
    """Test double of torch_neuronx, on a host with two cores."""
    with neuron_doubles.on_path() as patch:
        patch.setenv("NEURON_DOUBLE_CORES", "2")
        yield importlib.import_module("torch_neuronx")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_fused_recurrences_are_refused(neuronx: Any, kind: Callable[..., nn.Module]) -> None:
    """No compiler supports torch's own layers."""
    with pytest.raises(RuntimeError, match=r"aten::(lstm|gru|rnn_tanh)"):
        neuronx.trace(kind(2, 3).eval(), torch.rand(4, 1, 2))


def test_cores_are_those_that_the_environment_leaves(neuronx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(start: int, count: int = 1) -> None:
        with neuronx.neuron_cores_context(start_nc=start, nc_count=count):
            pass

    place(1)
    with pytest.raises(ValueError, match="nc_count"):
        place(0, count=3)
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "1")
    with pytest.raises(ValueError, match="no NeuronCore 1"):
        place(1)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0-1")
    place(1)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0,2")
    with pytest.raises(RuntimeError, match="not contiguous"):
        place(0)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "1-2")
    with pytest.raises(RuntimeError, match="not available"):
        neuronx.move_trace_to_device(neuronx.trace(nn.ReLU(), torch.rand(3)), 0)
