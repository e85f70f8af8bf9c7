"""Bags of embeddings, `embedding_bag(ids[N, K])`, as embeddings that are reduced."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import LoweringError, calling_line, source_suffix


def embedding_bag(
    input: torch.Tensor,  # noqa: A002 - torch's names
    weight: torch.Tensor,
    offsets: Any,
    mode: str,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int | None,
    max_norm: float | None,
    **_: Any,
) -> torch.Tensor:
    """Reduce the embeddings of ids[N, K] to [N, F]; those of `padding_idx` do not count.

    Raises:
        LoweringError: the bags have sizes of their own, or embeddings are normalised when they are read.
    """
    if input.dim() != 2 or offsets is not None or max_norm is not None:
        raise LoweringError(
            f"embedding_bag takes offsets or max_norm{source_suffix(calling_line())}: give it ids[N, K], padded with "
            "padding_idx to the same size"
        )
    found = torch.nn.functional.embedding(input, weight)
    real = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx % weight.shape[0]
    real = real.unsqueeze(2)
    if mode == "max":
        highest = found.masked_fill(~real, float("-inf")).amax(1)
        return torch.where(real.any(1), highest, torch.zeros_like(highest))
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(2)
    total = found.masked_fill(~real, 0.0).sum(1)
    return total if mode == "sum" else total / real.sum(1).clamp(min=1)
