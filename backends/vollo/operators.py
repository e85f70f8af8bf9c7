"""The operators of a program that was rewritten for Vollo: what its LSTM is, and what runs beside it on the CPU.

Vollo's LSTM begins with zeros and gives every timestep of every row, padding or not. Later timesteps never reach
earlier ones, so its answers on real timesteps are right, and what depends on lengths is done around it: `cleaned` puts
zeros on padding, `last` takes each row's own last step, and `mirrored` turns each row back to front within its own
length, for the second direction. Tensors are x[B, T, F] and lengths[B].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_library = torch.library.Library("neuron_lstm", "FRAGMENT")
_library.define("vollo_lstm(Tensor x, Tensor[] weights, bool bias, bool bidirectional) -> Tensor")
_library.define("cleaned(Tensor x, Tensor lengths) -> Tensor")
_library.define("last(Tensor x, Tensor lengths) -> Tensor")
_library.define("mirrored(Tensor x, Tensor lengths) -> Tensor")


@torch.library.register_fake("neuron_lstm::vollo_lstm", lib=_library)  # type: ignore[untyped-decorator]
def _lstm_shape(x: Tensor, weights: Sequence[Tensor], bias: bool, bidirectional: bool) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], weights[1].shape[1] * (2 if bidirectional else 1))


@torch.library.register_fake("neuron_lstm::cleaned", lib=_library)  # type: ignore[untyped-decorator]
@torch.library.register_fake("neuron_lstm::mirrored", lib=_library)  # type: ignore[untyped-decorator]
def _same_shape(x: Tensor, lengths: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("neuron_lstm::last", lib=_library)  # type: ignore[untyped-decorator]
def _last_shape(x: Tensor, lengths: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[2])


@torch.library.impl(_library, "vollo_lstm", "CompositeExplicitAutograd")
def _lstm(x: Tensor, weights: Sequence[Tensor], bias: bool, bidirectional: bool) -> Tensor:
    """One layer as torch computes it, where a program is run without Vollo."""
    zeros = x.new_zeros(2 if bidirectional else 1, x.shape[0], weights[1].shape[1])
    y, _, _ = torch.ops.aten.lstm.input(x, [zeros, zeros], list(weights), bias, 1, 0.0, False, bidirectional, True)
    return torch.Tensor.contiguous(y)


@torch.library.impl(_library, "cleaned", "CompositeExplicitAutograd")
def _cleaned(x: Tensor, lengths: Tensor) -> Tensor:
    padding = torch.arange(x.shape[1])[None, :] >= lengths[:, None]
    return torch.where(padding[:, :, None], 0.0, x)  # chosen, not multiplied: 0 x inf and 0 x NaN are NaN


@torch.library.impl(_library, "last", "CompositeExplicitAutograd")
def _last(x: Tensor, lengths: Tensor) -> Tensor:
    return x[torch.arange(x.shape[0]), lengths - 1]


@torch.library.impl(_library, "mirrored", "CompositeExplicitAutograd")
def _mirrored(x: Tensor, lengths: Tensor) -> Tensor:
    steps = (lengths[:, None] - 1 - torch.arange(x.shape[1])[None, :]).clamp(min=0)
    return x.gather(1, steps[:, :, None].expand(x.shape))
