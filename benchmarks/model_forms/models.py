"""Models that are traced for one request: a subsampling encoder, and a loop over timesteps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Crnn(nn.Module):
    """Convolutions, one with a stride of 2, and a bidirectional GRU: frames[B, T, 40] -> [B, T', 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(40, 128, 3, padding=1)
        self.second = nn.Conv1d(128, 128, 3, stride=2, padding=1)
        self.gru = nn.GRU(128, 128, batch_first=True, bidirectional=True)
        self.out = nn.Linear(256, 32)

    def convolved(self, frames: Tensor) -> Tensor:
        """Return the input of the GRU, [B, (T - 1)//2 + 1, 128]."""
        return torch.relu(self.second(torch.relu(self.first(frames.transpose(1, 2))))).transpose(1, 2)

    def forward(self, frames: Tensor) -> Tensor:
        """Compute the scores of whole sequences."""
        scores: Tensor = self.out(self.gru(self.convolved(frames))[0])
        return scores

    def packed(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Compute the scores of a padded batch, packed after the convolutions."""
        rows = pack_padded_sequence(
            self.convolved(frames), (lengths - 1) // 2 + 1, batch_first=True, enforce_sorted=False
        )
        scores: Tensor = self.out(pad_packed_sequence(self.gru(rows)[0], batch_first=True)[0])
        return scores


class CellLoop(nn.Module):
    """An `nn.LSTMCell` in a loop: frames[B, T, 128] -> states[B, T, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(128, 256)

    def forward(self, frames: Tensor) -> Tensor:
        """Compute the hidden states."""
        h = frames.new_zeros(frames.size(0), 256)
        c = frames.new_zeros(frames.size(0), 256)
        states = []
        for t in range(frames.size(1)):
            h, c = self.cell(frames[:, t], (h, c))
            states.append(h)
        return torch.stack(states, 1)
