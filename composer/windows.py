"""Parts that read a window of timesteps: convolutions, pooling, upsampling."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from .part import Part, Place


class Convolution(Part):
    """A convolution with as many timesteps as before."""

    variants = ("plain", "dilated", "named same", "two dimensions")
    masked_variants = ("masked before",)

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        size = choose.choice((3, 5))
        dilation = 2 if self.variant == "dilated" else 1
        padding = "same" if self.variant == "named same" else dilation * (size // 2)
        if self.variant == "two dimensions":
            self.conv: nn.Module = nn.Conv2d(1, 1, 3, padding=1)
        else:
            self.conv = nn.Conv1d(place.width, place.width, size, padding=padding, dilation=dilation)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Convolve over time, or over time and features."""
        if self.variant == "masked before" and lengths is not None:
            x = x.masked_fill(~self.mask(x, lengths), 0.0)
        channels = self.channels(x)
        if self.variant == "two dimensions":
            channels = self.conv(channels.unsqueeze(1)).squeeze(1)
        else:
            channels = self.conv(channels)
        return torch.relu(self.sequence(channels)), lengths


class StridedConvolution(Part):
    """A convolution with a stride over time."""

    keeps_time = False
    variants = ("3 by 2", "2 by 2", "5 by 3", "1 by 2")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.size, self.stride = (int(number) for number in self.variant.split(" by "))
        self.padding = self.size // 2
        self.conv = nn.Conv1d(place.width, place.width, self.size, self.stride, self.padding)

    def steps(self, timesteps: int) -> int:
        """Return the number of frames."""
        return (timesteps + 2 * self.padding - self.size) // self.stride + 1

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Convolve, and count the frames of each row."""
        x = torch.tanh(self.sequence(self.conv(self.channels(x))))
        return x, None if lengths is None else (lengths + 2 * self.padding - self.size) // self.stride + 1


class ValidConvolution(Part):
    """A convolution without padding; the sequence is padded before where it may be too short."""

    keeps_time = False
    variants = ("causal", "both sides")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.size = choose.choice((2, 3, 4))
        self.missing = max(0, self.size - place.shortest)
        self.before = self.missing if self.variant == "causal" else self.missing // 2
        self.conv = nn.Conv1d(place.width, place.width, self.size)

    def steps(self, timesteps: int) -> int:
        """Return the number of windows."""
        return timesteps + self.missing - self.size + 1

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Pad as far as needed, then convolve."""
        channels = self.channels(x)
        if self.missing:
            channels = functional.pad(channels, (self.before, self.missing - self.before))
        x = torch.relu(self.sequence(self.conv(channels)))
        return x, None if lengths is None else lengths + (self.missing - self.size + 1)


class Pooling(Part):
    """A maximum or mean over windows of timesteps."""

    keeps_time = False
    variants = ("max 3 by 1", "max 2 by 2", "max 3 by 2", "mean 3 by 1", "mean 2 by 2", "mean of real 3 by 1")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.size, self.stride = (int(number) for number in self.variant.rsplit(" ", 3)[1::2])
        padding = 1 if self.size == 3 else 0
        ceil_mode = self.size == 2
        if self.variant.startswith("max"):
            self.pool: nn.Module = nn.MaxPool1d(self.size, self.stride, padding, ceil_mode=ceil_mode)
        else:
            real = "real" in self.variant
            self.pool = nn.AvgPool1d(self.size, self.stride, padding, ceil_mode, count_include_pad=not real)

    def steps(self, timesteps: int) -> int:
        """Return the number of windows."""
        return (timesteps + self.stride - 1) // self.stride

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Pool over time."""
        x = self.sequence(self.pool(self.channels(x)))
        return x, None if lengths is None else (lengths + self.stride - 1) // self.stride


class Upsampling(Part):
    """Twice as many timesteps."""

    keeps_time = False
    variants = ("repeated", "nearest", "linear", "transposed convolution")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        self.up = nn.ConvTranspose1d(place.width, place.width, 2, 2)

    def steps(self, timesteps: int) -> int:
        """Return twice the number."""
        return 2 * timesteps

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Upsample over time."""
        if self.variant == "repeated":
            x = x.repeat_interleave(2, self.time)
        elif self.variant == "transposed convolution":
            x = self.sequence(self.up(self.channels(x)))
        else:
            x = self.sequence(functional.interpolate(self.channels(x), scale_factor=2, mode=self.variant))
        return x, None if lengths is None else 2 * lengths
