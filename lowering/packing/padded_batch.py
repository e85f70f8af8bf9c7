"""Sizes and lengths of the padded batch with which a model is traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import Unproved, calling_line, source_suffix


@dataclass
class PaddedBatch:
    """The sizes of the traced batch, which may be symbolic, and the lengths that mask recurrences over it."""

    rows: Any
    timesteps: Any
    lengths: torch.Tensor | None
    """[B]; None if nothing is masked."""
    max_length: tuple[int, str | None] | None = None
    """The smallest total_length of all pad_packed_sequence calls, with its line."""

    def mask_lengths(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return the lengths that mask a recurrence over x[B, T, ...]; None if x has other dimensions."""
        if self.lengths is None or not same_size(x.shape[0], self.rows) or not same_size(x.shape[1], self.timesteps):
            return None
        return self.lengths

    def has_swapped_axes(self, x: torch.Tensor) -> bool:
        """Whether x[B, T, ...] has time in the place of the batch, and the batch in the place of time."""
        return same_size(x.shape[0], self.timesteps) and same_size(x.shape[1], self.rows)


class TracedLengths(list[int]):
    """Result of `lengths.tolist()` while tracing: pack_padded_sequence takes it, reading it is refused."""

    def __init__(self, tensor: torch.Tensor, owner: str = "") -> None:
        super().__init__()
        self.tensor = tensor
        self._owner = owner

    def _refuse(self, *_: object) -> Any:
        others = "the values of `lengths`, or of another tensor with one number per request,"
        read = f"the lengths of {self._owner}" if self._owner else others
        raise Unproved(
            f"the model reads {read} in Python{source_suffix(calling_line())}. Its graph must not depend on them: keep "
            "them a tensor, pass lengths to pack_padded_sequence unchanged, and pick one entry of each row by "
            "x[torch.arange(x.size(0)), index]."
        )

    __iter__ = __getitem__ = __len__ = __bool__ = __contains__ = _refuse


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are the same number or the same symbol, regardless of its example value."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return isinstance(a, int) and isinstance(b, int) and a == b
