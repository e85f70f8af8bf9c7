"""Parts around another part: skip connections, concatenations, reversed time."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from .part import Part, Place


class Feedforward(Part):
    """A layer for each timestep: the inner part where no other one fits."""

    variants = ("feedforward",)

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.layer = nn.Linear(place.width, place.width)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Apply the layer and a tanh."""
        return torch.tanh(self.layer(x)), lengths


class Join(Part):
    """A part around an inner part, which keeps the number of timesteps."""

    def __init__(self, choose: random.Random, place: Place, inner: Part) -> None:
        super().__init__(choose, place)
        self.inner = inner


class Skip(Join):
    """A connection around the inner part."""

    variants = ("sum", "half", "weighted", "gated")

    def __init__(self, choose: random.Random, place: Place, inner: Part) -> None:
        super().__init__(choose, place, inner)
        self.weight = nn.Parameter(torch.tensor(0.3))
        self.gate = nn.Linear(place.width, place.width)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Join the input and what the inner part makes of it."""
        y, lengths = self.inner(x, lengths)
        if self.variant == "sum":
            return x + y, lengths
        if self.variant == "half":
            return (x + y) * 0.5, lengths
        weight = self.weight if self.variant == "weighted" else torch.sigmoid(self.gate(x))
        return weight * x + (1 - weight) * y, lengths


class Concatenation(Join):
    """A concatenation of the input and what the inner part makes of it, along features or along time."""

    variants = ("features", "with the mean", "time", "token before", "token behind", "shifted")

    def __init__(self, choose: random.Random, place: Place, inner: Part) -> None:
        super().__init__(choose, place, inner)
        self.keeps_time = self.variant in ("features", "with the mean", "shifted")
        self.narrow = nn.Linear(2 * place.width, place.width)
        self.token = nn.Parameter(torch.rand(1, 1, place.width) - 0.5)

    def steps(self, timesteps: int) -> int:
        """Return the number of timesteps of the concatenation."""
        return timesteps if self.keeps_time else 2 * timesteps if self.variant == "time" else timesteps + 1

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Concatenate."""
        y, lengths = self.inner(x, lengths)
        if self.variant == "features":
            return self.narrow(torch.cat([x, y], 2)), lengths
        if self.variant == "with the mean":
            return self.narrow(torch.cat([y, x.mean(self.time, keepdim=True).expand_as(y)], 2)), lengths
        if self.variant == "time":
            return torch.cat([x, y], self.time), None if lengths is None else 2 * lengths
        if self.variant == "shifted":
            first = torch.zeros_like(y.narrow(self.time, 0, 1))
            before = y[:, :-1] if self.time == 1 else y[:-1]
            return x + torch.cat([first, before], self.time), lengths
        rows = x.size(1 - self.time)
        token = self.token.expand(*((rows, -1, -1) if self.time == 1 else (-1, rows, -1)))
        parts = [token, y] if self.variant == "token before" else [y, token]
        return torch.cat(parts, self.time), None if lengths is None else lengths + 1


class Flip(Join):
    """A sequence in reversed order of time."""

    variants = ("there", "there and back", "sum of both")

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Reverse time before the inner part."""
        y, lengths = self.inner(x.flip(self.time), lengths)
        if self.variant == "there":
            return y, lengths
        return (y.flip(self.time) if self.variant == "there and back" else y + x), lengths
