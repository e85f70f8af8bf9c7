"""The test doubles check callers against AWS's documentation."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import neuron_doubles
import pytest
import torch
from torch import nn
from traceable import Conv


class Affine(nn.Module):
    """The function of AWS's documentation."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y


@pytest.fixture
def neuronx() -> Iterator[Any]:
    """Test double of torch_neuronx, on a host with two cores."""
    with neuron_doubles.on_path() as patch:
        patch.setenv("NEURON_DOUBLE_CORES", "2")
        yield importlib.import_module("torch_neuronx")


@torch.no_grad()
def test_separated_weights_are_replaced_and_inlined_ones_are_not(neuronx: Any) -> None:
    one, other, x = Conv().eval(), Conv().eval(), torch.rand(1, 1, 3, 3)
    separated = neuronx.trace(one, x, inline_weights_to_neff=False)
    neuronx.replace_weights(separated, other.state_dict())
    neuronx.move_trace_to_device(separated, 0)
    inlined = neuronx.trace(one, x)
    with pytest.warns(UserWarning, match="does not contain any separated weights"):
        neuronx.replace_weights(inlined, other.state_dict())

    assert torch.equal(separated(x), other(x))
    assert torch.equal(inlined(x), one(x))
    with pytest.raises(ValueError, match=r"conv\.bias has another shape"):
        neuronx.replace_weights(separated, {"conv.bias": torch.zeros(2)})


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_fused_recurrences_are_refused(neuronx: Any, kind: Callable[..., nn.Module]) -> None:
    """No compiler supports torch's own layers."""
    with pytest.raises(RuntimeError, match=r"aten::(lstm|gru|rnn_tanh)"):
        neuronx.trace(kind(2, 3).eval(), torch.rand(4, 1, 2))


def test_compiling_without_a_device_needs_a_target(neuronx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3)
    with pytest.raises(ValueError, match="--target"):
        neuronx.trace(Affine(), (x, x), cpu_backend=True)
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "0")
    with pytest.raises(RuntimeError, match="no Neuron device"):
        neuronx.trace(Affine(), (x, x), compiler_args="--target inf2")

    assert neuronx.trace(Affine(), (x, x), compiler_args=["--target", "inf2"], cpu_backend=True) is not None


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


@torch.no_grad()
def test_inf1_falls_back_to_the_cpu_unless_told_not_to() -> None:
    table, ids = nn.Embedding(5, 2), torch.tensor([1, 4])
    with neuron_doubles.on_path():
        neuron = importlib.import_module("torch_neuron")

        assert torch.equal(neuron.trace(table, ids)(ids), table(ids))
        with pytest.raises(AttributeError, match="aten::embedding"):
            neuron.trace(table, ids, fallback=False)
        with pytest.raises(TypeError, match="list of strings"):
            neuron.trace(table, ids, compiler_args="--fast-math none")
