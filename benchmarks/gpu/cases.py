"""Models and ragged batches of the comparison on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers them


@dataclass(frozen=True)
class Case:
    """A stack of LSTM layers and the lengths of one batch."""

    name: str
    lengths: tuple[int, ...]
    features: int = 128
    hidden: int = 256
    layers: int = 2
    bidirectional: bool = False

    def layer(self) -> nn.LSTM:
        """Return the layers with the same weights each time."""
        torch.manual_seed(0)
        return nn.LSTM(
            self.features, self.hidden, self.layers, batch_first=True, bidirectional=self.bidirectional
        ).eval()

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Return x[B, T, F] with zeros on padding, and lengths[B], on the CPU; the longest row comes first."""
        torch.manual_seed(1)
        lengths = torch.tensor(sorted(self.lengths, reverse=True))
        x = torch.randn(len(self.lengths), int(lengths[0]), self.features)
        padding = torch.arange(x.shape[1])[None, :] >= lengths[:, None]
        return x.masked_fill(padding[:, :, None], 0.0), lengths


def triangle(rows: int, longest: int) -> tuple[int, ...]:
    """Return lengths spread evenly up to the longest.

    >>> triangle(4, 8)
    (2, 4, 6, 8)
    """
    return tuple(max(1, longest * (row + 1) // rows) for row in range(rows))


CASES = (
    Case("128->256 x2, B=32 triangle", triangle(32, 128)),
    Case("the same, bidirectional", triangle(32, 128), bidirectional=True),
    Case("128->256 x2, B=256 triangle", triangle(256, 128)),
    Case("128->256 x2, one request of 20 timesteps", (20,)),
)


class Masked(nn.Module):
    """The layers as the lowered operator: exact for every row."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return y[B, T, D*H] and h_n[L*D, B, H]."""
        own = self.layer
        rows = own.num_layers * (2 if own.bidirectional else 1)
        state = torch.zeros(rows, x.shape[0], own.hidden_size, dtype=x.dtype, device=x.device)
        weights = [getattr(own, name) for name in own._flat_weights_names]  # noqa: SLF001 - torch has no other list
        y, h_n, _ = torch.ops.neuron_lstm.lstm(
            x, lengths, state, state, weights, own.bias, own.num_layers, own.bidirectional, False
        )
        return y, h_n


class Packed(nn.Module):
    """The layers over packed rows, which is what users write."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return y[B, T, D*H] and h_n[L*D, B, H]; lengths are on the CPU."""
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        y, (h_n, _) = self.layer(packed)
        return pad_packed_sequence(y, batch_first=True)[0], h_n


class Padded(nn.Module):
    """The layers over padded rows, with a gather of the last real state; right in one direction only."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return y[B, T, H] and the last layer's state [1, B, H]."""
        y, _ = self.layer(x)
        last = (lengths - 1)[:, None, None].expand(-1, 1, y.shape[2])
        return y, y.gather(1, last).transpose(0, 1)
