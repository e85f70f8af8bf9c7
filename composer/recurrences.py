"""Recurrent parts: layers over the whole sequence, and loops over its timesteps."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .part import Part, Place

_STATES = ("default", "zeros", "learned", "of the first step")


class Recurrence(Part):
    """An LSTM, GRU or RNN: one or two layers, one or two directions, packed or not, with an initial state."""

    variants = ("LSTM", "GRU", "RNN")
    masked_variants = ("packed LSTM", "packed GRU", "packed RNN")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.layers, self.hidden = choose.choice((1, 1, 2)), choose.choice((3, 5))
        both = choose.random() < 0.5
        self.states = self.layers * (2 if both else 1)
        self.initial = choose.choice(_STATES)
        self.reads_state = choose.random() < 0.3
        kind = getattr(nn, self.variant.removeprefix("packed "))
        self.layer = kind(place.width, self.hidden, self.layers, batch_first=place.time == 1, bidirectional=both)
        self.out = nn.Linear(self.hidden * (2 if both else 1), place.width)
        self.of_state = nn.Linear(self.hidden, place.width)
        self.learned = nn.Parameter(torch.rand(self.states, 1, self.hidden) - 0.5)
        self.of_first = nn.Linear(place.width, self.hidden)

    def extra_repr(self) -> str:
        """Return the variant, the initial state, and whether the last state is read."""
        return f"{self.variant}, initial state {self.initial}{', reads the last state' * self.reads_state}"

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Run the layers, and return to the width of the model."""
        state = self._initial(x)
        if self.variant.startswith("packed") and lengths is not None:
            batch_first = self.time == 1
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first, enforce_sorted=False)
            packed, last = self.layer(packed, state)
            y, _ = pad_packed_sequence(packed, batch_first)
        else:
            y, last = self.layer(x, state)
        y = self.out(y)
        if self.reads_state:
            hidden = last[0] if isinstance(last, tuple) else last
            y = y + self.of_state(hidden[-1]).unsqueeze(self.time)
        return y, lengths

    def _initial(self, x: Tensor) -> Any:
        rows = x.size(1 - self.time)
        if self.initial == "default":
            return None
        if self.initial == "zeros":
            state = x.new_zeros(self.states, rows, self.hidden)
        elif self.initial == "learned":
            state = self.learned.expand(-1, rows, -1).contiguous()
        else:
            first = torch.tanh(self.of_first(x.select(self.time, 0)))
            state = first.unsqueeze(0).repeat(self.states, 1, 1)
        return (state, torch.zeros_like(state)) if isinstance(self.layer, nn.LSTM) else state


class CellLoop(Part):
    """A loop in Python over the timesteps, with an LSTMCell or GRUCell."""

    variants = ("LSTMCell", "GRUCell", "LSTMCell backward", "GRUCell unbound")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.hidden = choose.choice((3, 5))
        self.cell = getattr(nn, self.variant.split()[0])(place.width, self.hidden)
        self.out = nn.Linear(self.hidden, place.width)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Run the cell once for each timestep."""
        hidden = x.new_zeros(x.size(1 - self.time), self.hidden)
        memory = torch.zeros_like(hidden)
        states = []
        if self.variant.endswith("unbound"):
            for step in x.unbind(self.time):
                hidden = self.cell(step, hidden)
                states.append(hidden)
            return self.out(torch.stack(states, self.time)), lengths
        backward = self.variant.endswith("backward")
        for index in range(x.size(self.time)):
            step = x[:, -1 - index if backward else index] if self.time == 1 else x[-1 - index if backward else index]
            if isinstance(self.cell, nn.LSTMCell):
                hidden, memory = self.cell(step, (hidden, memory))
            else:
                hidden = self.cell(step, hidden)
            states.append(hidden)
        return self.out(torch.stack(states[::-1] if backward else states, self.time)), lengths
