"""Loops of published models: solvers within a timestep, gates that nothing reads, and rows that end."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .loop_models import FEATURES, HIDDEN, Looping, zeros


def solver_steps(m: Looping, x: Tensor) -> Any:
    """Several steps of a solver within each timestep, all with the same input, as in liquid networks."""
    (h, _), outputs = zeros(x), []
    for t in range(x.size(1)):
        drive = m.first(x[:, t])
        for _ in range(3):
            h = h + 0.25 * (torch.tanh(m.normalize(h) + drive) - h)
        outputs.append(h)
    return torch.stack(outputs, 1)


def gate_unread_at_the_end(m: Looping, x: Tensor) -> Any:
    """Only the last cell state is returned: nothing reads the third gate of the last timestep."""
    h, c = zeros(x)
    for t in range(x.size(1)):
        i, f, o, g = torch.chunk(m.gates(torch.cat([x[:, t], h], 1)), 4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return c


class RowsThatEnd(nn.Module):
    """A cell over packed data, split by the rows of each timestep; rows that end leave the states."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(FEATURES, HIDDEN)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        (h, c), outputs, ended = zeros(x), [], []
        for part in torch.split(packed.data, packed.batch_sizes.tolist()):
            ended.append(h[part.size(0) :])
            h, c = self.cell(part, (h[: part.size(0)], c[: part.size(0)]))
            outputs.append(h)
        states = torch.cat([*ended[::-1], h])
        whole = PackedSequence(torch.cat(outputs), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return pad_packed_sequence(whole, batch_first=True)[0], states[packed.unsorted_indices]


class StartsFromInputs(nn.Module):
    """A cell of its own whose first states are inputs, which only the first step reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.recurrent = nn.Linear(FEATURES, 2 * HIDDEN), nn.Linear(HIDDEN, 2 * HIDDEN)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
        outputs = []
        for t in range(x.size(1)):
            keep, new = (self.gates(x[:, t]) + self.recurrent(h)).chunk(2, 1)
            c = torch.sigmoid(keep) * c + torch.tanh(new)
            h = torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, 1), h, c
