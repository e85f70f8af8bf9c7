"""Several tensors in one buffer, so that one copy moves all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

_ALIGNMENT = 256
"""Bytes, as CUDA aligns its own allocations: vectorized kernels need it."""


@dataclass(frozen=True)
class TensorPlace:
    """The place of one tensor in a buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the tensor that is there in a buffer, uint8[N]."""
        return buffer[self.start : self.start + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class BufferLayout:
    """The places of several tensors, in their order."""

    places: tuple[TensorPlace, ...]
    nbytes: int

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors in a buffer, uint8[nbytes]; each is contiguous and shares its memory."""
        return [place.view(buffer) for place in self.places]

    def end_of(self, count: int) -> int:
        """Return the number of bytes of the first `count` tensors."""
        return self.places[count].start if count < len(self.places) else self.nbytes


def layout_of(tensors: Sequence[torch.Tensor]) -> BufferLayout:
    """Lay tensors out one after the other.

    >>> layout_of([torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)]).nbytes
    512
    """
    places, start = [], 0
    for tensor in tensors:
        nbytes = prod(tensor.shape) * tensor.element_size()
        places.append(TensorPlace(tensor.dtype, tuple(tensor.shape), start, nbytes))
        start += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return BufferLayout(tuple(places), start)
