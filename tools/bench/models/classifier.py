"""A classifier of sequences, as a user would write it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class TokenClassifier(nn.Module):
    """A classifier of sequences of tokens, or else of frames, into 16 classes, by the last state of a packed LSTM."""

    rows_are_sorted = False
    """Whether rows come in descending length: an exporter to ONNX cannot sort."""

    def __init__(
        self, tokens: int = 10_000, features: int = 128, hidden: int = 256, layers: int = 2, classes: int = 16
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, features) if tokens else nn.Identity()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True)
        self.classify = nn.Linear(hidden, classes)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Map ids int64[B, T] or frames float32[B, T, F] and lengths int64[B] to scores float32[B, 16]."""
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=self.rows_are_sorted)
        _, (state, _) = self.lstm(packed)
        scores: torch.Tensor = self.classify(state[-1])
        return scores
