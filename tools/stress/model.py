"""The served model: small, because the service is under test."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

TOKENS = 50


class Tagger(nn.Module):
    """A model that tags every token, and gives the topic of the text so far after each chunk."""

    def __init__(self, features: int = 8, hidden: int = 16, tags: int = 4, topics: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, features)
        self.lstm = nn.LSTM(features, hidden, num_layers=2, batch_first=True)
        self.tag = nn.Linear(hidden, tags)
        self.topic = nn.Linear(hidden, topics)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map ids int64[B, T] and lengths int64[B] to tags float32[B, T, 4] and topic float32[B, 3]."""
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        packed, (state, _) = self.lstm(packed)
        steps, _ = pad_packed_sequence(packed, batch_first=True)
        return self.tag(steps), self.topic(state[-1])
