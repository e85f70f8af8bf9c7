"""Packing and unpacking by one index operation each; torch takes one operation for every timestep.

`pack` and `unpack` replace the two kernels below torch's `pack_padded_sequence` and `pad_packed_sequence`, with the
same arguments and results. Both consist of `gather` and `scatter`, each of which is the other's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn import functional

from .packed_layout import Integers, PackedLayout, batch_sizes_of, packed_layout


def gather(padded: Tensor, index: Tensor) -> Tensor:
    """Return the rows [N, ...] of `padded` [S, ...] at `index`, int64[N], without duplicates."""
    if padded.device.type != "cpu":  # there a gradient that is added takes no longer, and Python's function does
        return padded.index_select(0, index)
    rows: Tensor = _Gather.apply(padded, index)  # type: ignore[no-untyped-call]  # torch has no types for it
    return rows


def scatter(values: Tensor, index: Tensor, size: int, filler: float = 0.0) -> Tensor:
    """Return [size, ...] with the rows of `values` [N, ...] at `index`, int64[N], and `filler` elsewhere."""
    return values.new_full((size, *values.shape[1:]), filler).index_copy_(0, index, values)


def scatter_with_mask(values: Tensor, index: Tensor, size: int, columns: int) -> Tensor:
    """Scatter `values` [N, F] into ones [size, F + columns]; the columns hold 0 in rows with values."""
    whole = values.new_ones(size, values.shape[1] + columns)
    return whole.index_copy_(0, index, functional.pad(values, (0, columns)))


class _Gather(torch.autograd.Function):
    """Gather whose gradient is copied: on a CPU, torch adds it row by row, in up to twice the time."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.size = index, padded.shape[0]
        return padded.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return scatter(gradients[0], ctx.index, ctx.size), None


def use_torch_kernel(uniform: bool) -> bool:
    """Whether a batch is left to torch: for rows of one length only torch's backward pass is slow."""
    return uniform and not torch.is_grad_enabled()


def pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Return the packed data [N, ...] of rows sorted longest first, and its `batch_sizes`, int64[T].

    Batches that torch refuses, or packs as fast, are left to torch.
    """
    if padded.dim() >= 2 and lengths.dim() == 1 and lengths.dtype == torch.int64 and lengths.device.type == "cpu":
        known = lengths.numpy()  # reading one number from a tensor takes longer
        if _can_be_packed(padded, known, batch_first) and not use_torch_kernel(bool(known[0] == known[-1])):
            batch_sizes = batch_sizes_of(known)
            return _packed(padded, packed_layout(batch_sizes), batch_first), batch_sizes
    result: tuple[Tensor, Tensor] = _VF._pack_padded_sequence(padded, lengths, batch_first)
    return result


def _can_be_packed(padded: Tensor, lengths: Integers, batch_first: bool) -> bool:
    rows, longest = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    if len(lengths) != rows or not rows or not 1 <= lengths[-1] <= lengths[0] <= longest:
        return False
    return bool((lengths[:-1] >= lengths[1:]).all())


def _packed(padded: Tensor, layout: PackedLayout, batch_first: bool) -> Tensor:
    if layout.uniform:
        time_major = padded.transpose(0, 1) if batch_first else padded
        # A copy, as torch's is: writing to packed data must not change the input.
        return time_major[: layout.longest].clone(memory_format=torch.contiguous_format).flatten(0, 1)
    if padded.transpose(0, 1).is_contiguous():  # read in memory order
        padded, batch_first = padded.transpose(0, 1), not batch_first
    if not batch_first:
        return gather(padded.flatten(0, 1), layout.padded_indices(padded.device))
    return gather(padded.flatten(0, 1), layout.batch_first_indices(padded.shape[1], padded.device))


def unpack(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """Return [B, total_length, ...], or time first, padded by `padding_value`, and the lengths, int64[B].

    The inverse of `pack`. In memory the result has time first, as torch's has.
    """
    layout = packed_layout(batch_sizes)
    if use_torch_kernel(layout.uniform):
        result: tuple[Tensor, Tensor] = _VF._pad_packed_sequence(
            data, batch_sizes, batch_first, padding_value, total_length
        )
        return result
    if layout.uniform and total_length == layout.longest:
        time_major = data.clone().unflatten(0, (total_length, layout.rows))
    else:
        whole = scatter(data, layout.padded_indices(data.device), total_length * layout.rows, padding_value)
        time_major = whole.unflatten(0, (total_length, layout.rows))
    return (time_major.transpose(0, 1) if batch_first else time_major), layout.lengths.clone()
