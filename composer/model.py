"""A composed model, and its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .part import Part
from .summaries import Summary

VOCABULARY = 11
LONGEST = 16
"""Timesteps of the longest request."""


class Composed(nn.Module):
    """Parts one after the other, then one or two outputs: of each timestep, or of the sequence."""

    def __init__(
        self,
        embedding: nn.Embedding | None,
        parts: Sequence[Part],
        heads: Sequence[nn.Module],
        time: int,
        width: int,
    ) -> None:
        super().__init__()
        self.time, self.width = time, width
        self.embedding = embedding
        self.parts = nn.ModuleList(parts)
        self.heads = nn.ModuleList(heads)

    def answer(self, x: Tensor, lengths: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        """Return one output, or a tuple of two."""
        if self.embedding is not None:
            x = self.embedding(x)
        for part in self.parts:
            x, lengths = part(x, lengths)
        outputs = [head.vector(x, lengths) if isinstance(head, Summary) else head(x) for head in self.heads]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class ComposedOfSequences(Composed):
    """A composed model whose forward takes no lengths."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the outputs for x[B, T, F] or [B, T], time first in a time-major model."""
        return self.answer(x, None)


class ComposedWithLengths(Composed):
    """A composed model whose forward takes lengths."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the outputs for x[B, T, F] or [B, T], time first in a time-major model, and lengths[B]."""
        return self.answer(x, lengths)


@dataclass(frozen=True)
class ComposedModel:
    """A model that a seed stands for."""

    seed: int
    features: tuple[str, ...]
    model: Composed
    yaml: str


def configuration(width: int, *, ids: bool, time: int, lengths: bool) -> str:
    """Return the YAML of a model with one input."""
    axes = ["batch", "time"] if time == 1 else ["time", "batch"]
    spec = f"int64, shape: [{', '.join(axes)}]" if ids else f"float32, shape: [{', '.join(axes)}, {width}]"
    return (
        f"neuron_lstm:\n  inputs: {{x: {{dtype: {spec}}}}}\n{'  lengths: lengths' if lengths else ''}\n"
        f"  buckets: {{batch: [1, 8], length: [4, {LONGEST}]}}\n"
    )


def alone(model: Composed, item: Tensor) -> list[Tensor]:
    """Return the outputs for one request, x[T, F] or [T], in eager mode, without a batch dimension."""
    batch_dim = 1 - model.time
    batch = item.unsqueeze(batch_dim)
    with torch.no_grad():
        if isinstance(model, ComposedWithLengths):
            outputs = model.answer(batch, torch.tensor([item.size(0)]))
        else:
            outputs = model.answer(batch, None)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [output.squeeze(batch_dim) if output.dim() == 3 else output.squeeze(0) for output in outputs]
