"""Buckets that do not fit into a GPU's memory, the grid that would, and the buffers of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from ...bucketing.shapes import Bucket, BucketGrid


def memory_message(fitting: Mapping[Bucket, int], failing: Sequence[Bucket], free: int, device: str) -> str:
    """Name the buckets that do not fit, what each takes, and the grid that would fit.

    `fitting` are the bytes of each bucket that fits, `free` those after loading the weights, before the first graph.

    >>> fitting = {Bucket(1, 64): 2**20, Bucket(8, 64): 2**23}
    >>> print(memory_message(fitting, [Bucket(32, 64)], 2**24, "GPU"))
    the graphs of these buckets do not fit into the memory of GPU (16 MiB free after loading the weights): 32 x 64
    takes about 32 MiB. The grid that would fit is buckets: {batch: [1, 8], length: [64]}; or leave more memory
    free: fewer workers on this GPU, no other process on it
    """
    named = ", ".join(f"{one.batch} x {one.length} takes {_taken(one, fitting, free)}" for one in failing)
    grid = fitting_grid([*fitting])
    advice = (
        "No bucket of this grid fits: serve smaller ones"
        if grid is None
        else f"The grid that would fit is buckets: {{batch: {list(grid.batches)}, length: {list(grid.lengths)}}}"
    )
    return (
        f"the graphs of these buckets do not fit into the memory of {device} ({_size(free)} free after loading the "
        f"weights): {named}. {advice}; or leave more memory free: fewer workers on this GPU, no other process on it"
    )


def fitting_grid(fitting: Sequence[Bucket]) -> BucketGrid | None:
    """Return a grid of fitting buckets: all lengths that fit, and the batch sizes that fit with each.

    Longer sequences come before larger batches, because a batch can be divided.

    >>> fitting_grid([Bucket(1, 8), Bucket(4, 8), Bucket(1, 64)])
    BucketGrid(batches=(1,), lengths=(8, 64))
    >>> fitting_grid([]) is None
    True
    """
    if not fitting:
        return None
    lengths = tuple(sorted({bucket.length for bucket in fitting}))
    least = min(bucket.batch for bucket in fitting)
    kept = tuple(length for length in lengths if Bucket(least, length) in fitting)
    batches = sorted({bucket.batch for bucket in fitting})
    return BucketGrid(tuple(rows for rows in batches if all(Bucket(rows, length) in fitting for length in kept)), kept)


def _taken(bucket: Bucket, fitting: Mapping[Bucket, int], free: int) -> str:
    """Bytes of a bucket that does not fit, in proportion to the largest one that does."""
    if not fitting:
        return f"more than {_size(free)}"
    known = max(fitting, key=_area)
    return f"about {_size(fitting[known] * _area(bucket) // _area(known))}"


def _area(bucket: Bucket) -> int:
    return bucket.batch * bucket.length


def _size(nbytes: int) -> str:
    return f"{round(nbytes / 2**20)} MiB" if nbytes >= 2**20 else f"{nbytes} bytes"


_ALIGNMENT = 256
"""Bytes, as CUDA aligns its own allocations: vectorized kernels need it."""


@dataclass(frozen=True)
class _TensorPlace:
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

    places: tuple[_TensorPlace, ...]
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
        places.append(_TensorPlace(tensor.dtype, tuple(tensor.shape), start, nbytes))
        start += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return BufferLayout(tuple(places), start)
