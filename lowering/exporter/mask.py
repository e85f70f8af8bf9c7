"""Mask of the real timesteps of a batch, as forward() takes it."""

from __future__ import annotations

from typing import Any

import torch

from ...config.mask import MaskConfig


def mask_of_lengths(mask: MaskConfig, lengths: torch.Tensor, time: Any) -> torch.Tensor:
    """Return the mask of a batch padded to `time` timesteps, in the layout and type of the configuration.

    >>> mask_of_lengths(MaskConfig(name="m", dtype="int64", true_for="padding"), torch.tensor([3, 1]), 3)
    tensor([[0, 0, 0],
            [0, 1, 1]])
    """
    timesteps = torch.arange(time, device=lengths.device) < lengths.unsqueeze(1)
    return in_layout(mask, timesteps if mask.true_for == "timesteps" else ~timesteps)


def in_layout(mask: MaskConfig, values: torch.Tensor) -> torch.Tensor:
    """Return values[B, T] in the layout and type of the configuration."""
    if mask.shape.index("time") < mask.shape.index("batch"):
        values = values.t()
    for dim, size in enumerate(mask.shape):
        if size == 1:
            values = values.unsqueeze(dim)
    return values.to(getattr(torch, mask.dtype))
