"""A model with two inputs and two outputs: a tag for every timestep and a label for the sequence."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    """A model that maps ids[B, T] and frames[B, T, 3] to tags[B, T, 5] and label[B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 9)
        self.lstm = nn.LSTM(12, 16, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(32, 5)
        self.label = nn.Linear(32, 2)

    def forward(self, ids: Tensor, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.cat([self.embed(ids), frames], dim=-1)
        packed, (last, _) = self.lstm(pack_padded_sequence(steps, lengths, batch_first=True, enforce_sorted=False))
        states, _ = pad_packed_sequence(packed, batch_first=True)
        return self.tag(states), self.label(torch.cat([last[0], last[1]], dim=-1))
