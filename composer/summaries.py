"""Parts that make one vector of a sequence: its last timestep, or a reduction over time."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from .part import Part, Place


class Summary(Part, ABC):
    """A vector of the whole sequence, [B, F]: added to every timestep, or an output of the model."""

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.layer = nn.Linear(place.width, place.width)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Add the vector to every timestep."""
        return x + torch.tanh(self.layer(self.vector(x, lengths))).unsqueeze(self.time), lengths

    @abstractmethod
    def vector(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the vector, [B, F]."""


class LastStep(Summary):
    """The last timestep of each row."""

    variants = ("index -1", "size - 1", "slice")
    masked_variants = ("gathered", "indexed by lengths")

    def vector(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the last timestep, [B, F]."""
        if self.variant == "gathered" and lengths is not None:
            ends = (lengths - 1).unsqueeze(1).expand(-1, self.width).unsqueeze(self.time)
            return x.gather(self.time, ends).squeeze(self.time)
        if self.variant == "indexed by lengths" and lengths is not None:
            rows = torch.arange(x.size(1 - self.time))
            return x[rows, lengths - 1] if self.time == 1 else x[lengths - 1, rows]
        if self.variant == "slice":
            return (x[:, -1:] if self.time == 1 else x[-1:]).squeeze(self.time)
        last = -1 if self.variant == "index -1" else x.size(self.time) - 1
        return x[:, last] if self.time == 1 else x[last]


class Reduction(Summary):
    """A reduction over time."""

    variants = ("mean", "sum", "max", "min", "logsumexp", "deviation")
    masked_variants = ("mean by lengths", "masked max", "mean by mask")

    def vector(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the reduction, [B, F]."""
        if lengths is not None and self.variant in self.masked_variants:
            return self._of_real_steps(x, lengths)
        if self.variant == "max":
            return x.max(self.time)[0]
        if self.variant == "deviation":
            return torch.sqrt(x.var(self.time, unbiased=False) + 0.1)
        if self.variant == "sum":
            return x.sum(self.time) / 8
        if self.variant == "logsumexp":
            return torch.logsumexp(x, self.time)
        return x.mean(self.time) if self.variant == "mean" else x.amin(self.time)

    def _of_real_steps(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = self.mask(x, lengths)
        if self.variant == "masked max":
            return x.masked_fill(~mask, float("-inf")).amax(self.time)
        if self.variant == "mean by mask":
            return torch.where(mask, x, torch.zeros_like(x)).sum(self.time) / mask.sum(self.time)
        return (x * mask).sum(self.time) / lengths.unsqueeze(1).to(x.dtype)
