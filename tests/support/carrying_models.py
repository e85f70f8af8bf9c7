"""Models whose chunks carry states of loops or timesteps before the chunk. Each takes x[B, T, 3]."""

from collections.abc import Callable
from functools import cache

import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

CONFIG = one_input("[batch, time, 3]", batch="[1, 4]", length="[4, 9]")


class CellLoop(nn.Module):
    """A loop over a cell with a layer norm, from a learned state: a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm = nn.LSTMCell(3, 4), nn.LayerNorm(4)
        self.start = nn.Parameter(torch.randn(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.start.expand(len(x), 4)
        c, outputs = torch.zeros_like(h), []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            h = self.norm(h)
            outputs.append(h)
        return torch.stack(outputs, 1)


class CausalConvolution(nn.Module):
    """A dilated convolution, padded on both sides and cut at the end, before a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gru = nn.Conv1d(3, 3, 3, padding=4, dilation=2), nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gru(torch.relu(self.conv(x.transpose(1, 2))[:, :, :-4]).transpose(1, 2))[0]
        return y


class ShiftedInput(nn.Module):
    """Each timestep also gets the one before it; the first gets a learned one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Parameter(torch.randn(3)), nn.LSTM(6, 4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        before = torch.cat([self.first.expand(len(x), 1, 3), x[:, :-1]], 1)
        y: Tensor = self.lstm(torch.cat([x, before], 2))[0]
        return y


CARRYING: tuple[Callable[[], nn.Module], ...] = (CellLoop, CausalConvolution, ShiftedInput)


@cache
def lowered_carrying(kind: Callable[[], nn.Module]) -> tuple[nn.Module, LoweredModel]:
    """The model and its programs."""
    torch.manual_seed(0)
    model = kind().eval()
    return model, lower(model, CONFIG)
