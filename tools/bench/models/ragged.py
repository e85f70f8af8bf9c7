"""A model of recurrent layers only."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Ragged(nn.Module):
    """A stack of packed LSTM layers with D directions. A tagger takes every state, a classifier the last one."""

    rows_are_sorted = False
    """Whether rows come in descending length: an exporter to ONNX cannot sort."""

    def __init__(self, features: int, hidden: int, layers: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.directions = 2 if bidirectional else 1
        self.lstm = nn.LSTM(features, hidden, layers, bidirectional=bidirectional)

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map frames float32[T, B, F] and lengths int64[B] to states [T, B, D x H] and last [B, D x H]."""
        packed = pack_padded_sequence(frames, lengths, enforce_sorted=self.rows_are_sorted)
        packed, (state, _) = self.lstm(packed)
        states, _ = pad_packed_sequence(packed)
        return states, torch.cat(list(state[-self.directions :]), dim=1)
