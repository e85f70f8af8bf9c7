"""A model with an operator that ONNX does not have, between two layers."""

import torch
from torch import nn


class Resonator(nn.Module):
    """A model that maps frames [B, T, 3] and lengths [B] to a score of each timestep, [B, T, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False)
        states, _ = self.lstm(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        scores: torch.Tensor = self.head(torch.special.bessel_j0(4 * states))
        return scores
