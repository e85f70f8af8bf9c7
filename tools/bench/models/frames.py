"""A classifier of frames, so small that a request costs little more than its handling."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class FrameClassifier(nn.Module):
    """A classifier of sequences of frames into 16 classes, by the last state of a packed LSTM."""

    def __init__(self, features: int = 128, hidden: int = 4) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.classify = nn.Linear(hidden, 16)

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Map frames float32[B, T, F] and lengths int64[B] to scores float32[B, 16]."""
        _, (state, _) = self.lstm(pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False))
        scores: torch.Tensor = self.classify(state[-1])
        return scores
