"""Into packed data and out of it in one step each way, where torch takes one for every timestep.

`pack` and `unpack` stand in for the two functions below torch's `pack_padded_sequence` and `pad_packed_sequence`, and
take and give what those do. Both are made of `gather` and `scatter`, each of which is the other's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn import functional

from .packed_layout import PackedLayout, batch_sizes_of, packed_layout


def gather(padded: Tensor, index: Tensor) -> Tensor:
    """The rows [N, ...] at the places `index`, int64[N], no two the same, of `padded` [S, ...]."""
    taken: Tensor = _Gather.apply(padded, index)  # type: ignore[no-untyped-call]
    return taken


def scatter(values: Tensor, index: Tensor, size: int, filler: float = 0.0) -> Tensor:
    """[size, ...] with the rows of `values` [N, ...] at the places `index`, int64[N], and `filler` elsewhere."""
    whole: Tensor = _Scatter.apply(values, index, size, filler)  # type: ignore[no-untyped-call]
    return whole


def scatter_with_mask(values: Tensor, index: Tensor, size: int) -> Tensor:
    """As `scatter`, [size, F + 1] of `values` [N, F], with a last column that holds 1 where there are no values."""
    whole: Tensor = _ScatterWithMask.apply(values, index, size)  # type: ignore[no-untyped-call]
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.size = index, padded.shape[0]
        return padded.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return scatter(gradients[0], ctx.index, ctx.size), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, size: int, filler: float) -> Tensor:
        ctx.index = index
        return values.new_full((size, *values.shape[1:]), filler).index_copy_(0, index, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gather(gradients[0], ctx.index), None, None, None


class _ScatterWithMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.index, ctx.features = index, values.shape[1]
        whole = values.new_zeros(size, ctx.features + 1)
        whole[:, ctx.features] = 1
        return whole.index_copy_(0, index, functional.pad(values, (0, 1)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gather(gradients[0], ctx.index)[:, : ctx.features], None, None


def use_torch_kernel(even: bool) -> bool:
    """Whether a batch is left to torch: rows of one length are dear only on the way back."""
    return even and not torch.is_grad_enabled()


def pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """The packed data [N, ...] of rows sorted longest first, and its `batch_sizes`, int64[T].

    What torch refuses is left to torch, and what it does as fast.
    """
    if not _can_be_packed(padded, lengths, batch_first) or use_torch_kernel(bool(lengths[0] == lengths[-1])):
        theirs: tuple[Tensor, Tensor] = _VF._pack_padded_sequence(padded, lengths, batch_first)
        return theirs
    batch_sizes = batch_sizes_of(lengths)
    return _packed(padded, packed_layout(batch_sizes), batch_first), batch_sizes


def _can_be_packed(padded: Tensor, lengths: Tensor, batch_first: bool) -> bool:
    if padded.dim() < 2 or lengths.dim() != 1 or lengths.device.type != "cpu" or not len(lengths):
        return False
    rows, longest = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    descending = bool((lengths[:-1] >= lengths[1:]).all())
    return len(lengths) == rows and descending and int(lengths[-1]) >= 1 and int(lengths[0]) <= longest


def _packed(padded: Tensor, steps: PackedLayout, batch_first: bool) -> Tensor:
    if steps.uniform:
        time_major = padded.transpose(0, 1) if batch_first else padded
        # A copy, as packed data is: who writes to it does not write to the input.
        return time_major[: steps.longest].clone(memory_format=torch.contiguous_format).flatten(0, 1)
    if padded.transpose(0, 1).is_contiguous():  # read as it lies in memory
        padded, batch_first = padded.transpose(0, 1), not batch_first
    step, row = steps.positions(padded.device)
    index = row * padded.shape[1] + step if batch_first else step * steps.rows + row
    return gather(padded.flatten(0, 1), index)


def unpack(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """[B, total_length, ...], or time first, with `padding_value` behind each row, and the lengths, int64[B].

    The inverse of `pack`. In memory it has time first, as torch's has.
    """
    steps = packed_layout(batch_sizes)
    if use_torch_kernel(steps.uniform):
        theirs: tuple[Tensor, Tensor] = _VF._pad_packed_sequence(
            data, batch_sizes, batch_first, padding_value, total_length
        )
        return theirs
    if steps.uniform and total_length == steps.longest:
        time_major = data.clone().unflatten(0, (total_length, steps.rows))
    else:
        step, row = steps.positions(data.device)
        whole = scatter(data, step * steps.rows + row, total_length * steps.rows, padding_value)
        time_major = whole.unflatten(0, (total_length, steps.rows))
    return (time_major.transpose(0, 1) if batch_first else time_major), steps.lengths.clone()
