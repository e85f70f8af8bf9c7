"""Models that are causal, so that they can run in chunks: typical code around a recurrence.

Each has its configuration in `model_cases.py`.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Outputs = Any  # tensors in any nesting


class OneLstm(nn.Module):
    """An LSTM from 6 features to 8; subclasses use its padded outputs."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, layers, batch_first=True)
        self.out = nn.Linear(8, 4)

    def unpacked(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs float32[B, T, 8] with zeros on the padding, and the lengths that unpacking returns."""
        packed, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(packed, batch_first=True)


class MeanOfUnpacked(OneLstm):
    """A mean without a mask: unpacked outputs are zero on the padding."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, n = self.unpacked(x, lengths)
        return self.out(y.sum(1) / n[:, None])


class MeanByCountedMask(OneLstm):
    """The mean, divided by the sum of the mask; the first dimension of the mask is expanded in two ways."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.lstm(x)
        steps = torch.arange(y.size(1)).unsqueeze(0).repeat(y.size(0), 1)
        mask = (steps < lengths.unsqueeze(1).expand(-1, y.size(1))).float()
        return self.out((y * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1))


class MeanCountedFromOne(OneLstm):
    """The mean, with timesteps counted from 1."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.lstm(x)
        padding = torch.arange(1, y.size(1) + 1)[None, :] > lengths[:, None]
        return y.masked_fill(padding[:, :, None], 0.0).sum(1) / lengths.unsqueeze(-1).float()


class MaximumOfMasked(OneLstm):
    """The values of max() over outputs filled with -inf, beside scores for every timestep."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.unpacked(x, lengths)
        mask = torch.arange(y.size(1))[None, :] < lengths[:, None]
        return self.out(y.masked_fill(~mask[:, :, None], float("-inf")).max(dim=1).values), self.out(y)


class MaximumOfUnpacked(OneLstm):
    """max(1)[0] of outputs that pad_packed_sequence padded with -inf."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        packed, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        y, _ = pad_packed_sequence(packed, batch_first=True, padding_value=float("-inf"))
        return torch.max(y, 1)[0]


class Extremes(OneLstm):
    """The least and the greatest output, the greatest id, and whether any output was above a half."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.lstm(self.embed(ids))
        mask = torch.arange(y.size(1))[None, :] < lengths[:, None]
        least = torch.where(mask[:, :, None], y, float("inf")).amin(1)
        greatest = y.masked_fill(~mask[:, :, None], -1e9).amax(1, keepdim=True)
        return least, greatest, ids.masked_fill(~mask, -1).amax(1), (y[:, :, 0] > 0.1).logical_and(mask).amax(1)


class TwoLayersAndTheirEnd(OneLstm):
    """A score for every timestep of two layers, and both layers' final states."""

    def __init__(self) -> None:
        super().__init__(layers=2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        packed, (h, c) = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        y, _ = pad_packed_sequence(packed, batch_first=True)
        return {"steps": self.out(y), "final": torch.cat([h[-1], c[-1]], 1), "h": h}


class GruGivenState(nn.Module):
    """A two-layer GRU whose initial state is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, h0: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        packed, h = self.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False), h0)
        return pad_packed_sequence(packed, batch_first=True)[0], h


class LstmGivenState(nn.Module):
    """An LSTM with (h0, c0) as a tuple argument; time-major."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor], lengths: torch.Tensor) -> Outputs:
        packed, (h, c) = self.lstm(pack_padded_sequence(x, lengths, enforce_sorted=False), state)
        return pad_packed_sequence(packed)[0], h, c


class LearnedState(nn.Module):
    """An LSTM with a learned initial state; the final state is the output."""

    def __init__(self) -> None:
        super().__init__()
        self.h0 = nn.Parameter(torch.randn(2, 1, 8))
        self.c0 = nn.Parameter(torch.randn(2, 1, 8))
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        state = self.h0.repeat(1, x.size(0), 1), self.c0.expand(-1, x.size(0), -1).contiguous()
        _, (h, _) = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False), state)
        return h[-1]


class StateOfSpeaker(nn.Module):
    """An LSTM whose initial state is computed from an input without time, which the output uses again."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(3, 8)
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.out = nn.Linear(8 + 3, 4)

    def forward(self, x: torch.Tensor, speaker: torch.Tensor) -> Outputs:
        h = torch.tanh(self.begin(speaker)).unsqueeze(0)
        y, (h, _) = self.lstm(x, (h, torch.zeros_like(h)))
        return self.out(torch.cat([h[0], speaker], 1)), y


class SpeakerAtEveryStep(nn.Module):
    """A vector for each sequence beside the frames: expanded for one layer, repeated for another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(6 + 3, 8, batch_first=True)
        self.second = nn.GRU(8 + 3, 8, batch_first=True)

    def forward(self, x: torch.Tensor, speaker: torch.Tensor) -> Outputs:
        expanded = speaker[:, None, :].expand(-1, x.size(1), -1)
        y, _ = self.first(torch.cat([x, expanded], -1))
        return self.second(torch.cat([y, speaker.unsqueeze(1).repeat(1, x.size(1), 1)], -1))[0]


class Parallel(nn.Module):
    """Two LSTMs side by side, added at every timestep; the initial states are new_zeros of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.LSTM(6, 8, batch_first=True)
        self.right = nn.LSTM(6, 8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        begin = x.new_zeros(1, x.size(0), 8)
        y, (h, _) = self.left(x, (begin, begin))
        z, (g, _) = self.right(x)
        return y + z, h[-1] * g[-1] + x.new_ones(x.size(0), 8)


class ReluRnn(nn.Module):
    """A two-layer RNN with ReLU, without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(6, 5, 2, nonlinearity="relu", bias=False, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        packed, h = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(packed, batch_first=True)[0], h


class ProjectedGivenState(nn.Module):
    """A projected LSTM with learned initial states, so that h_0 is not the result of a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 9, 2, batch_first=True, proj_size=4)
        self.h0 = nn.Parameter(torch.randn(2, 1, 4))
        self.c0 = nn.Parameter(torch.randn(2, 1, 9))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        state = [value.expand(-1, x.size(0), -1).contiguous() for value in (self.h0, self.c0)]
        return self.lstm(x, tuple(state))


class InplaceRelu(nn.Module):
    """Layers between recurrences that write in place, as nn.ReLU(inplace=True) does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(6, 8, batch_first=True)
        self.between = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 6))
        self.second = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.second(self.between(self.first(x)[0]).relu_())
        return y.mul_(2.0)


class AddedInPlace(nn.Module):
    """Residual layers written `x += ...`, and the last step of each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.GRU(6, 6, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(2))
        self.begin = nn.Linear(6, 6)

    def forward(self, carried_0: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        x, last = self.begin(carried_0), []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            last.append((x * 2.0)[:, -1])
            x += layer(norm(x))[0]
        return x, torch.stack(last, 1)


class LogSoftmaxAtEveryStep(OneLstm):
    """Logarithms of probabilities for every timestep, as in a language model."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        return self.out(self.unpacked(x, lengths)[0]).log_softmax(-1)


class FixedStatistics(OneLstm):
    """Statistics in buffers, inside the state dict and outside it, and a BatchNorm over [B, F, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.scale: torch.Tensor
        self.register_buffer("mean", torch.randn(6))
        self.register_buffer("scale", torch.rand(6) + 0.5, persistent=False)
        self.norm = nn.BatchNorm1d(8)
        with torch.no_grad():
            self.norm.running_mean = torch.randn(8)
            self.norm.running_var = torch.rand(8) + 0.5

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, (h, _) = self.lstm((x - self.mean) / self.scale * torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 2.0]))
        return self.norm(y.transpose(1, 2)).transpose(1, 2), self.norm(h[-1])


class LastStep(OneLstm):
    """The last timestep by a slice, of a model with lengths."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        return self.out(self.unpacked(x, lengths)[0][:, -1])


class LastStepByIndex(OneLstm):
    """The last timestep as `y[arange(B), lengths - 1]`, and as a gather."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.lstm(x)
        gathered = y.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, y.size(2))).squeeze(1)
        return self.out(y[torch.arange(y.size(0)), lengths - 1]), gathered


class LengthsAreAnAnswer(OneLstm):
    """All results of pad_packed_sequence, and the input itself."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        return *self.unpacked(x, lengths), x


class TiedWeights(nn.Module):
    """A language model whose last layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> Outputs:
        return self.out(self.lstm(self.embed(ids))[0])


class Switched(OneLstm):
    """A boolean input for every timestep, which masks frames."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        y, _ = self.unpacked(torch.where(keep[:, :, None], x, 0.0), lengths)
        return y * keep.unsqueeze(-1), keep


class FirstHundred(OneLstm):
    """Outputs of the first hundred timesteps only, which short sequences do not reveal."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        early = torch.arange(x.size(1)) < 100
        return self.lstm(x)[0] * early[None, :, None]


class RunningSum(OneLstm):
    """The sum of all outputs so far."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Outputs:
        return self.lstm(x)[0].cumsum(1)
