"""Tensors of requests of other lengths, with values that decide or that reductions are sensitive to."""

from __future__ import annotations

import math

import torch

from .placement import Sizes

KINDS = ("sample", "ties", "zeros", "signed zeros", "constant", "large", "low", "not finite", "minus infinity")
_NOT_FINITE = (math.nan, math.inf, -math.inf)
_PADDING = (*_NOT_FINITE, 1e30, -1e30)


def resized(tensor: torch.Tensor, shape: Sizes, timesteps: int, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor of a request's sizes, made of the elements of another one."""
    for dim, size in enumerate(shape):
        wanted = timesteps if size == "time" else 1 if size == "batch" else size
        if size in ("time", "batch"):
            if not tensor.shape[dim]:
                tensor = tensor.new_zeros([1 if d == dim else n for d, n in enumerate(tensor.shape)])
            chosen = torch.randint(tensor.shape[dim], (wanted,), generator=generator)
            tensor = tensor.index_select(dim, chosen)
    return tensor.clone()


def with_kind(tensor: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor with values of a kind."""
    noise = torch.randn(tensor.shape, generator=generator)
    if tensor.dtype is torch.bool:
        made = {"zeros": noise > math.inf, "constant": noise < math.inf}.get(kind, tensor)
        return (noise > 0) if kind == "ties" else made
    if not tensor.is_floating_point():
        made = {
            "ties": torch.randint(3, tensor.shape, generator=generator),
            "zeros": torch.zeros_like(tensor),
            "constant": torch.full_like(tensor, 2),
            "large": (noise * 10000).to(tensor.dtype),
            "low": -10000 - (noise * 10).abs().to(tensor.dtype),
            # the lowest number has no negative: the processor stops at its division by -1
            "not finite": torch.where(noise > 0, torch.iinfo(tensor.dtype).max, 1 - torch.iinfo(tensor.dtype).max),
        }.get(kind, tensor)
        return made.to(tensor.dtype)
    made = {
        "ties": noise.round(),
        "zeros": torch.zeros_like(noise),
        "signed zeros": torch.where(noise > 0, 0.0, -0.0),
        "constant": torch.full_like(noise, 0.7),
        "large": noise * 10000,
        "low": -10000 - noise.abs(),
        "not finite": _mixed(noise, generator),
        "minus infinity": torch.full_like(noise, -math.inf),
    }.get(kind, tensor)
    return made.to(tensor.dtype)


def _mixed(noise: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    special = torch.tensor(_NOT_FINITE)[torch.randint(len(_NOT_FINITE), noise.shape, generator=generator)]
    return torch.where(noise > 0.3, special, noise)


def padding(shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return arbitrary values, as they stand beyond the end of a row."""
    places = torch.randint(len(_PADDING), shape, generator=generator)
    if dtype.is_floating_point:
        return torch.tensor(_PADDING, dtype=dtype)[places]
    return places.to(dtype) if dtype is torch.bool else ((places - 2) * 1000003).to(dtype)
