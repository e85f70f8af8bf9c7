"""Operators of a request's graph that become several, for which there are rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _cosine_similarity(a: torch.Tensor, b: torch.Tensor, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    rank = max(a.dim(), b.dim())
    a, b = (x.reshape(*[1] * (rank - x.dim()), *x.shape) for x in (a, b))
    products = [(x * y).sum(dim) for x, y in ((a, b), (a, a), (b, b))]
    norms = [product.sqrt().clamp(min=eps) for product in products[1:]]
    return products[0] / (norms[0] * norms[1])


DECOMPOSED: dict[Any, Callable[..., Any]] = {torch.ops.aten.cosine_similarity.default: _cosine_similarity}
