"""A part of a composed model: a function of a sequence, and of its lengths if the model has any."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """Facts about the sequence that reaches a part."""

    time: int
    """Dimension of time: 1 in [B, T, F], 0 in [T, B, F]."""
    width: int
    """Number of features, the same in front of every part and behind it."""
    shortest: int
    """Number of timesteps here of a request of one timestep."""
    lengths: bool
    """Whether the model takes lengths."""


class Part(nn.Module):
    """A part that maps x[B, T, F] or [T, B, F], and lengths[B] or None, to the same of its own timesteps.

    A part draws its variant, and its sizes, while it is made.
    """

    keeps_time = True
    """Whether the output has as many timesteps as the input."""
    variants: tuple[str, ...] = ()
    masked_variants: tuple[str, ...] = ()
    """Variants that need lengths."""

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__()
        self.time = place.time
        self.width = place.width
        self.variant = choose.choice(self.variants + (self.masked_variants if place.lengths else ()))

    def steps(self, timesteps: int) -> int:
        """Return the number of timesteps behind the part."""
        return timesteps

    def extra_repr(self) -> str:
        """Return the variant, for the printed model."""
        return self.variant

    def channels(self, x: Tensor) -> Tensor:
        """Return x as [B, F, T], as convolutions take it."""
        return x.transpose(1, 2) if self.time == 1 else x.permute(1, 2, 0)

    def sequence(self, x: Tensor) -> Tensor:
        """Return x[B, F, T] in the order of the model."""
        return x.transpose(1, 2) if self.time == 1 else x.permute(2, 0, 1)

    def mask(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the mask of the real timesteps: bool [B, T, 1] or [T, B, 1]."""
        steps = torch.arange(x.size(self.time))
        if self.time == 1:
            return (steps.unsqueeze(0) < lengths.unsqueeze(1)).unsqueeze(2)
        return (steps.unsqueeze(1) < lengths.unsqueeze(0)).unsqueeze(2)
