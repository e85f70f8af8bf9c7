"""Parts in which a timestep attends to all timesteps."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from .part import Part, Place


class Attention(Part):
    """An attention over time, added to the sequence or in its place."""

    variants = ("pooled", "several heads", "additive", "scaled product", "causal")
    masked_variants = ("masked pooled", "masked heads")

    def __init__(self, choose: random.Random, place: Place) -> None:
        super().__init__(choose, place)
        width = place.width
        self.score = nn.Linear(width, 1)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.heads = nn.MultiheadAttention(width, 2, batch_first=place.time == 1)

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Attend."""
        if "heads" in self.variant:
            return self._by_heads(x, lengths), lengths
        if "pooled" in self.variant or self.variant == "additive":
            return x + self._context(x, lengths), lengths
        rows = x if self.time == 1 else x.transpose(0, 1)
        query, key, value = self.query(rows), self.key(rows), self.value(rows)
        rows = functional.scaled_dot_product_attention(query, key, value, is_causal=self.variant == "causal")
        return rows if self.time == 1 else rows.transpose(0, 1), lengths

    def _by_heads(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        padding = None
        if self.variant == "masked heads" and lengths is not None:
            padding = ~self.mask(x, lengths).squeeze(2)
            padding = padding if self.time == 1 else padding.transpose(0, 1)
        attended: Tensor = self.heads(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return x + attended

    def _context(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the weighted mean over time, with a time dimension of one."""
        if self.variant == "additive":
            question = self.query(x.select(self.time, -1)).unsqueeze(self.time)
            scores = self.score(torch.tanh(self.key(x) + question))
        else:
            scores = self.score(x)
        if self.variant == "masked pooled" and lengths is not None:
            scores = scores.masked_fill(~self.mask(x, lengths), float("-inf"))
        context: Tensor = (torch.softmax(scores, self.time) * self.value(x)).sum(self.time, keepdim=True)
        return context
