"""The experiment: a small classifier, and batches of sequences of one length or of all lengths."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Setup = Literal["A", "B"]
SETUPS: dict[Setup, str] = {"A": "no padding", "B": "padded data"}

Pass = Literal["forward", "forward and backward"]
PASSES: tuple[Pass, ...] = ("forward", "forward and backward")

BATCH = 512
PADDING = 0
"""The id of the padding."""


class Batch(NamedTuple):
    """Inputs of a model and its targets."""

    ids: Tensor
    """int64[B, T]."""
    lengths: Tensor
    """int64[B] on the CPU, the longest first."""
    target: Tensor
    """int64[B]: all belong to the first class."""


def row_lengths(setup: Setup, longest: int, rows: int) -> list[int]:
    """Timesteps of each row.

    All rows have the longest length, or each row has one timestep less than the row before and, after 1,
    the longest length again.

    >>> row_lengths("A", 3, 5), row_lengths("B", 3, 5)
    ([3, 3, 3, 3, 3], [3, 3, 2, 2, 1])
    """
    if setup == "A":
        return [longest] * rows
    return sorted((longest - row % longest for row in range(rows)), reverse=True)


def make_batch(setup: Setup, longest: int, rows: int, device: torch.device) -> Batch:
    """A batch of ones, right-padded."""
    lengths = torch.tensor(row_lengths(setup, longest, rows))
    ids = torch.where(torch.arange(longest) < lengths[:, None], 1, PADDING)
    return Batch(ids.to(device), lengths, torch.zeros(rows, dtype=torch.int64, device=device))


def varied(batch: Batch) -> Batch:
    """The same rows with random ids and classes.

    Sums over equal rows depend more on the order of additions in float32 than on the contestant.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 10, batch.ids.shape, generator=generator).to(batch.ids.device)
    target = torch.randint(0, 2, batch.target.shape, generator=generator).to(batch.ids.device)
    return batch._replace(ids=torch.where(batch.ids == PADDING, PADDING, ids), target=target)


class Classifier(nn.Module):
    """A classifier: embedding 10 x 16, LSTM 16 -> 32, linear to two classes, summed over all timesteps."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16, padding_idx=PADDING)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.linear = nn.Linear(32, 2)

    def forward(self, ids: Tensor, lengths: Tensor, packs: bool) -> Tensor:
        """Logits float32[B, 2]; the states on padding are zeros, by packing or by a mask."""
        x = self.embedding(ids)
        states = self._packed(x, lengths) if packs else self.lstm(x)[0] * (ids != PADDING).unsqueeze(2)
        logits: Tensor = self.linear(states)
        return logits.sum(1)

    def _packed(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, padding_value=PADDING)
        return states
