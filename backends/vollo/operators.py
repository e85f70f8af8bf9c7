"""Operators of a program rewritten for Vollo: its LSTM, and length-dependent steps on the CPU.

Vollo's LSTM starts from zeros and returns every timestep of every row, padding included. Later timesteps never affect
earlier ones, so its outputs at real timesteps are correct, and everything that depends on lengths is done around it:
`mask_padding` sets padding to zero, `last_timestep` selects the last real timestep of each row, and `reverse_sequence`
reverses each row within its own length, for the second direction. Tensors are x[B, T, F] and lengths[B].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

_library = torch.library.Library("neuron_lstm", "FRAGMENT")
_library.define("vollo_lstm(Tensor x, Tensor[] weights, bool bias, bool bidirectional) -> Tensor")
_library.define("mask_padding(Tensor x, Tensor lengths) -> Tensor")
_library.define("last_timestep(Tensor x, Tensor lengths) -> Tensor")
_library.define("reverse_sequence(Tensor x, Tensor lengths) -> Tensor")


def _lstm_shape(x: Tensor, weights: Sequence[Tensor], bias: bool, bidirectional: bool) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], weights[1].shape[1] * (2 if bidirectional else 1))


_SHAPES: Mapping[str, Callable[..., Tensor]] = {
    "vollo_lstm": _lstm_shape,
    "mask_padding": lambda x, lengths: x.new_empty(x.shape),
    "reverse_sequence": lambda x, lengths: x.new_empty(x.shape),
    "last_timestep": lambda x, lengths: x.new_empty(x.shape[0], x.shape[2]),
}
for _name, _shape in _SHAPES.items():
    torch.library.register_fake(f"neuron_lstm::{_name}", _shape, lib=_library)


@torch.library.impl(_library, "vollo_lstm", "CompositeExplicitAutograd")
def _lstm(x: Tensor, weights: Sequence[Tensor], bias: bool, bidirectional: bool) -> Tensor:
    """Compute one layer with torch, if a program runs without Vollo."""
    zeros = x.new_zeros(2 if bidirectional else 1, x.shape[0], weights[1].shape[1])
    y, _, _ = torch.ops.aten.lstm.input(x, [zeros, zeros], list(weights), bias, 1, 0.0, False, bidirectional, True)
    return torch.Tensor.contiguous(y)


@torch.library.impl(_library, "mask_padding", "CompositeExplicitAutograd")
def _mask_padding(x: Tensor, lengths: Tensor) -> Tensor:
    padding = torch.arange(x.shape[1])[None, :] >= lengths[:, None]
    return torch.where(padding[:, :, None], 0.0, x)  # selected, not multiplied: 0 x inf and 0 x NaN are NaN


@torch.library.impl(_library, "last_timestep", "CompositeExplicitAutograd")
def _last_timestep(x: Tensor, lengths: Tensor) -> Tensor:
    return x[torch.arange(x.shape[0]), lengths - 1]


@torch.library.impl(_library, "reverse_sequence", "CompositeExplicitAutograd")
def _reverse_sequence(x: Tensor, lengths: Tensor) -> Tensor:
    steps = (lengths[:, None] - 1 - torch.arange(x.shape[1])[None, :]).clamp(min=0)
    return x.gather(1, steps[:, :, None].expand(x.shape))
