"""Modules in TorchScript, and settings of torch that a program has not."""

import pytest
import torch
from input_configs import one_input
from ragged import lower_exact
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower

CONFIG = one_input("[batch, time, 3]")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


class Gated(nn.Module):
    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.gate(self.lstm(x)[0])
        return states


def test_a_module_in_torchscript_is_refused_with_what_to_write() -> None:
    """A trace could not follow it, and torch's own error would not say so."""
    with pytest.raises(LoweringError, match=r"^gate is a TorchScript module \(Sigmoid\).*derive its class from"):
        lower(Gated(torch.jit.script(nn.Sigmoid())), CONFIG)


def test_a_function_in_torchscript_is_lowered() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scaled = torch.jit.script(_scaled)

        def forward(self, states: Tensor) -> Tensor:
            scaled: Tensor = self.scaled(states, 2.0)
            return scaled

    lower_exact(Gated(Scaled()), CONFIG, ([9, 1, 4], [4]))


def _scaled(states: Tensor, factor: float) -> Tensor:
    return torch.tanh(states * factor)


class Weighted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        weights = torch.arange(x.size(1)) / x.size(1)
        torch.set_default_dtype(before)
        return x * weights[:, None]


def test_a_default_dtype_of_the_model_is_refused_with_the_line_that_takes_it() -> None:
    """A host has the default float32: the weights of the program would be of that type."""
    with pytest.raises(LoweringError, match=r"default dtype.*float64 .at \S+: weights = torch.arange.*Give the dtype"):
        lower(Weighted(), CONFIG)
    assert torch.get_default_dtype() is torch.float32
