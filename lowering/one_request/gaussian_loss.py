"""The Gaussian negative log likelihood without torch's check that no variance is negative."""

from __future__ import annotations

import math
from typing import Any

import torch


def gaussian_nll_loss(
    input: torch.Tensor,  # noqa: A002 - torch's names
    target: torch.Tensor,
    var: Any,
    full: bool,
    eps: float,
    reduction: str,
) -> torch.Tensor:
    """Compute `F.gaussian_nll_loss`; a variance may lack the last dimension, as there."""
    if not isinstance(var, torch.Tensor):
        var = torch.full_like(input, var)
    if var.dim() == input.dim() - 1:
        var = var.unsqueeze(-1)
    var = var.clamp(min=eps)
    loss: torch.Tensor = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()
