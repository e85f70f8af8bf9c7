"""Parts that normalise: over features, over channels, over time."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from .part import Part, Place


class Norm(Part):
    """A normalisation. Variances have a constant added, so that rounding errors stay small."""

    variants = ("layer", "group", "group of all", "batch", "time", "time and features")
    masked_variants = ("masked time",)

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.layer = nn.LayerNorm(place.width, eps=1e-2)
        self.group = nn.GroupNorm(1 if self.variant == "group of all" else 2, place.width, eps=1e-2)
        self.batch = nn.BatchNorm1d(place.width)
        nn.init.uniform_(self.batch.running_mean, -0.5, 0.5)  # type: ignore[arg-type]  # it tracks them
        nn.init.uniform_(self.batch.running_var, 0.5, 1.5)  # type: ignore[arg-type]  # it tracks them

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Normalise."""
        return self._normal(x, lengths), lengths

    def _normal(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.variant == "layer":
            normal: Tensor = self.layer(x)
            return normal
        if self.variant == "batch":
            return self.sequence(self.batch(self.channels(x)))
        if self.variant.startswith("group"):
            return self.sequence(self.group(self.channels(x)))
        if self.variant == "masked time" and lengths is not None:
            mask = self.mask(x, lengths).to(x.dtype)
            count = mask.sum(self.time, keepdim=True)
            mean = (x * mask).sum(self.time, keepdim=True) / count
            variance = ((x - mean) ** 2 * mask).sum(self.time, keepdim=True) / count
            return (x - mean) / torch.sqrt(variance + 0.1)
        over = (self.time, 2) if self.variant == "time and features" else (self.time,)
        mean = x.mean(over, keepdim=True)
        return (x - mean) / torch.sqrt(x.var(over, unbiased=False, keepdim=True) + 0.1)
