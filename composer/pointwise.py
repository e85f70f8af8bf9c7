"""Parts of arithmetic: elementwise functions, Einstein sums, other orders of the dimensions."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from .part import Part, Place


class Elementwise(Part):
    """A function of each element, or of its timestep."""

    variants = ("gelu", "gate", "where", "clamp", "position", "exponential")
    masked_variants = ("masked", "zero filled")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.gate = nn.Linear(place.width, place.width)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Apply the function."""
        if self.variant == "masked" and lengths is not None:
            return x * self.mask(x, lengths).to(x.dtype), lengths
        if self.variant == "zero filled" and lengths is not None:
            return x.masked_fill(~self.mask(x, lengths), 0.0), lengths
        return self._changed(x), lengths

    def _changed(self, x: Tensor) -> Tensor:
        if self.variant == "gelu":
            return functional.gelu(x)
        if self.variant == "gate":
            return x * torch.sigmoid(self.gate(x))
        if self.variant == "where":
            return torch.where(x > 0, x, 0.1 * x)
        if self.variant == "clamp":
            return x.abs().clamp(0.0, 2.0)
        if self.variant == "exponential":
            return torch.exp(-x * x)
        steps = torch.arange(x.size(self.time), dtype=x.dtype)
        return x + torch.sin(steps / 3).reshape((1, -1, 1) if self.time == 1 else (-1, 1, 1))


class Einsum(Part):
    """An Einstein sum over features, over pairs of timesteps, or over time."""

    variants = ("features", "pairs", "time")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.weight = nn.Parameter((torch.rand(place.width, place.width) - 0.5) / 2)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Sum."""
        sequence, other = ("btf", "bsf") if self.time == 1 else ("tbf", "sbf")
        if self.variant == "features":
            return torch.einsum(f"{sequence},fg->{sequence[:2]}g", x, self.weight), lengths
        if self.variant == "pairs":
            weights = torch.softmax(torch.einsum(f"{sequence},{other}->bts", x, x), 2)
            return torch.einsum(f"bts,{other}->{sequence}", weights, x), lengths
        products = torch.einsum(f"{sequence},{sequence[:2]}g->bfg", x, torch.tanh(x)) / x.size(self.time)
        return torch.einsum(f"{sequence},bfg->{sequence[:2]}g", x, torch.tanh(products)), lengths


class Transpose(Part):
    """A layer in another order of the dimensions."""

    variants = ("channels", "flattened", "swapped", "heads")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.layer = nn.Linear(place.width, place.width)
        self.channel = nn.Conv1d(place.width, place.width, 1)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Apply the layer, and return to the order of the model."""
        if self.variant == "channels":
            return self.sequence(self.channel(self.channels(x))), lengths
        if self.variant == "flattened":
            flat = torch.tanh(self.layer(x.reshape(-1, self.width)))
            return flat.view(x.size(0), x.size(1), -1), lengths
        if self.variant == "swapped":
            return self.layer(x.transpose(0, 1).contiguous()).transpose(0, 1), lengths
        heads = self.layer(x).view(x.size(0), x.size(1), 2, self.width // 2).transpose(1, 2)
        heads = heads * torch.softmax(heads, 3)
        return heads.transpose(1, 2).reshape(x.size(0), x.size(1), self.width), lengths
