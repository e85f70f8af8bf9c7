"""Parts of random models: each maps a sequence, and its lengths if the model has any, to another sequence.

Here are those that read one timestep, or a window of timesteps; `sequence_layers.py` has those that read all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


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
    """A part that maps x[B, T, F] or [T, B, F], and lengths[B] or None, to the same of its own timesteps."""

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
        self.draw(choose, place)

    def draw(self, choose: random.Random, place: Place) -> None:
        """Draw sizes, and make layers."""

    def steps(self, timesteps: Any) -> Any:
        """Return the number of timesteps behind the part: of a request, or of each row."""
        return timesteps

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.changed(x, lengths), None if lengths is None else self.steps(lengths)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the output."""
        raise NotImplementedError

    def extra_repr(self) -> str:
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
        return (steps.unsqueeze(1 - self.time) < lengths.unsqueeze(self.time)).unsqueeze(2)


class Convolution(Part):
    """A convolution with as many timesteps as before."""

    variants = ("plain", "dilated", "named same", "two dimensions")
    masked_variants = ("masked before",)

    def draw(self, choose: random.Random, place: Place) -> None:
        size = choose.choice((3, 5))
        dilation = 2 if self.variant == "dilated" else 1
        padding = "same" if self.variant == "named same" else dilation * (size // 2)
        if self.variant == "two dimensions":
            self.conv: nn.Module = nn.Conv2d(1, 1, 3, padding=1)
        else:
            self.conv = nn.Conv1d(place.width, place.width, size, padding=padding, dilation=dilation)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.variant == "masked before" and lengths is not None:
            x = x.masked_fill(~self.mask(x, lengths), 0.0)
        channels = self.channels(x)
        images = self.variant == "two dimensions"
        y = self.conv(channels.unsqueeze(1)).squeeze(1) if images else self.conv(channels)
        return torch.relu(self.sequence(y))


class StridedConvolution(Part):
    """A convolution with a stride over time."""

    keeps_time = False
    variants = ("3 by 2", "2 by 2", "5 by 3", "1 by 2")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.size, self.stride = (int(number) for number in self.variant.split(" by "))
        self.padding = self.size // 2
        self.conv = nn.Conv1d(place.width, place.width, self.size, self.stride, self.padding)

    def steps(self, timesteps: Any) -> Any:
        return (timesteps + 2 * self.padding - self.size) // self.stride + 1

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return torch.tanh(self.sequence(self.conv(self.channels(x))))


class ValidConvolution(Part):
    """A convolution without padding; the sequence is padded before where it may be too short."""

    keeps_time = False
    variants = ("causal", "both sides")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.size = choose.choice((2, 3, 4))
        self.missing = max(0, self.size - place.shortest)
        self.before = self.missing if self.variant == "causal" else self.missing // 2
        self.conv = nn.Conv1d(place.width, place.width, self.size)

    def steps(self, timesteps: Any) -> Any:
        return timesteps + (self.missing - self.size + 1)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        channels = self.channels(x)
        if self.missing:
            channels = functional.pad(channels, (self.before, self.missing - self.before))
        return torch.relu(self.sequence(self.conv(channels)))


class Pooling(Part):
    """A maximum or mean over windows of timesteps."""

    keeps_time = False
    variants = ("max 3 by 1", "max 2 by 2", "max 3 by 2", "mean 3 by 1", "mean 2 by 2", "mean of real 3 by 1")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.size, self.stride = (int(number) for number in self.variant.rsplit(" ", 3)[1::2])
        padding = 1 if self.size == 3 else 0
        ceil_mode = self.size == 2
        if self.variant.startswith("max"):
            self.pool: nn.Module = nn.MaxPool1d(self.size, self.stride, padding, ceil_mode=ceil_mode)
        else:
            real = "real" in self.variant
            self.pool = nn.AvgPool1d(self.size, self.stride, padding, ceil_mode, count_include_pad=not real)

    def steps(self, timesteps: Any) -> Any:
        return (timesteps + self.stride - 1) // self.stride

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self.sequence(self.pool(self.channels(x)))


class Upsampling(Part):
    """Twice as many timesteps."""

    keeps_time = False
    variants = ("repeated", "nearest", "linear", "transposed convolution")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.up = nn.ConvTranspose1d(place.width, place.width, 2, 2)

    def steps(self, timesteps: Any) -> Any:
        return 2 * timesteps

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.variant == "repeated":
            return x.repeat_interleave(2, self.time)
        if self.variant == "transposed convolution":
            return self.sequence(self.up(self.channels(x)))
        return self.sequence(functional.interpolate(self.channels(x), scale_factor=2, mode=self.variant))


class Elementwise(Part):
    """A function of each element, or of its timestep."""

    variants = ("gelu", "gate", "where", "clamp", "position", "exponential")
    masked_variants = ("masked", "zero filled")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.gate = nn.Linear(place.width, place.width)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.variant == "masked" and lengths is not None:
            return x * self.mask(x, lengths).to(x.dtype)
        if self.variant == "zero filled" and lengths is not None:
            return x.masked_fill(~self.mask(x, lengths), 0.0)
        functions: dict[str, Callable[[], Tensor]] = {
            "gelu": lambda: functional.gelu(x),
            "gate": lambda: x * torch.sigmoid(self.gate(x)),
            "where": lambda: torch.where(x > 0, x, 0.1 * x),
            "clamp": lambda: x.abs().clamp(0.0, 2.0),
            "exponential": lambda: torch.exp(-x * x),
            "position": lambda: x + self._positions(x),
        }
        return functions[self.variant]()

    def _positions(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.size(self.time), dtype=x.dtype)
        return torch.sin(steps / 3).reshape((1, -1, 1) if self.time == 1 else (-1, 1, 1))


class Einsum(Part):
    """An Einstein sum over features, over pairs of timesteps, or over time."""

    variants = ("features", "pairs", "time")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.weight = nn.Parameter((torch.rand(place.width, place.width) - 0.5) / 2)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        sequence, other = ("btf", "bsf") if self.time == 1 else ("tbf", "sbf")
        if self.variant == "features":
            return torch.einsum(f"{sequence},fg->{sequence[:2]}g", x, self.weight)
        if self.variant == "pairs":
            weights = torch.softmax(torch.einsum(f"{sequence},{other}->bts", x, x), 2)
            return torch.einsum(f"bts,{other}->{sequence}", weights, x)
        products = torch.einsum(f"{sequence},{sequence[:2]}g->bfg", x, torch.tanh(x)) / x.size(self.time)
        return torch.einsum(f"{sequence},bfg->{sequence[:2]}g", x, torch.tanh(products))


class Transpose(Part):
    """A layer in another order of the dimensions."""

    variants = ("channels", "flattened", "swapped", "heads")

    def draw(self, choose: random.Random, place: Place) -> None:
        self.layer = nn.Linear(place.width, place.width)
        self.channel = nn.Conv1d(place.width, place.width, 1)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.variant == "channels":
            return self.sequence(self.channel(self.channels(x)))
        if self.variant == "flattened":
            flat = torch.tanh(self.layer(x.reshape(-1, self.width)))
            return flat.view(x.size(0), x.size(1), -1)
        if self.variant == "swapped":
            swapped: Tensor = self.layer(x.transpose(0, 1).contiguous())
            return swapped.transpose(0, 1)
        heads: Tensor = self.layer(x).view(x.size(0), x.size(1), 2, self.width // 2).transpose(1, 2)
        heads = heads * torch.softmax(heads, 3)
        return heads.transpose(1, 2).reshape(x.size(0), x.size(1), self.width)


class Norm(Part):
    """A normalisation. Variances have a constant added, so that rounding errors stay small."""

    variants = ("layer", "group", "group of all", "batch", "time", "time and features")
    masked_variants = ("masked time",)

    def draw(self, choose: random.Random, place: Place) -> None:
        self.layer = nn.LayerNorm(place.width, eps=1e-2)
        self.group = nn.GroupNorm(1 if self.variant == "group of all" else 2, place.width, eps=1e-2)
        self.batch = nn.BatchNorm1d(place.width)
        nn.init.uniform_(self.batch.running_mean, -0.5, 0.5)  # type: ignore[arg-type]  # it tracks them
        nn.init.uniform_(self.batch.running_var, 0.5, 1.5)  # type: ignore[arg-type]  # it tracks them

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
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


class Feedforward(Part):
    """A layer for each timestep: the inner part where no other one fits."""

    variants = ("feedforward",)

    def draw(self, choose: random.Random, place: Place) -> None:
        self.layer = nn.Linear(place.width, place.width)

    def changed(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return torch.tanh(self.layer(x))
