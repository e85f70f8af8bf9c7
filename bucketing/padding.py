"""Padding of requests into a bucket, and removal of padding: `unpad` is the inverse of `pad`.

Only this file and the `execute` files import torch. Every request passes through here, so few calls handle a whole
batch: torch concatenates many tensors faster than it copies each to its position.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import cast

import torch
from torch.nn.utils.rnn import pad_sequence

from .shapes import Bucket, TensorSpec, size_at

_EXACT = 2**53
"""Largest magnitude up to which every integer is a float, which is the type that `pad_sequence` takes."""

_MOST_VIEWS = 4096
"""Longest padding of which a view is kept: there may be as many as timesteps, each of some 600 bytes."""


def pad(items: Sequence[torch.Tensor], spec: TensorSpec, bucket: Bucket) -> torch.Tensor:
    """Pad the requests' tensors into one contiguous tensor of `spec.sizes(*bucket)`.

    Each has `spec.item_shape`. Padded timesteps and dummy rows hold `spec.pad_value`. A single request that fills its
    bucket is not copied.

    >>> ids = TensorSpec("ids", "int64", ("batch", "time"), pad_value=7)
    >>> pad([torch.tensor([1, 2, 3]), torch.tensor([4])], ids, Bucket(3, 4))
    tensor([[1, 2, 3, 7],
            [4, 7, 7, 7],
            [7, 7, 7, 7]])

    Raises `ValueError`: an item has not the shape or dtype of `spec`, or does not fit the bucket.
    """
    if spec.batch_dim is None:
        bucket = Bucket(1, bucket.length)
    if not 1 <= len(items) <= bucket.batch:
        raise ValueError(f"{spec.name}: {len(items)} items for a bucket of {bucket.batch} rows")
    full = spec.item_sizes(bucket.length)
    _check_items(items, spec, full)
    if bucket.batch == 1 and items[0].shape == full and items[0].is_contiguous():
        return items[0] if spec.batch_dim is None else items[0].unsqueeze(spec.batch_dim)
    return _joined(items, spec, bucket) if len(spec.item_time_dims) == 1 else _stacked(items, spec, bucket)


def unpad(tensor: torch.Tensor, spec: TensorSpec, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Return each request's part of a padded tensor, without the batch dimension.

    It is the request's row and its own timesteps. The parts are contiguous copies, because an engine may overwrite
    `tensor` in its next call.

    >>> ids = TensorSpec("ids", "int64", ("batch", "time"))
    >>> unpad(torch.tensor([[1, 2, 3, 7], [4, 7, 7, 7], [7, 7, 7, 7]]), ids, [3, 1])
    [tensor([1, 2, 3]), tensor([4])]

    Raises `ValueError`: there are more lengths than rows, or a length beyond the tensor's timesteps.
    """
    if spec.batch_dim is None or spec.item_time_dims:
        return [view.clone(memory_format=torch.contiguous_format) for view in unpadded_views(tensor, spec, lengths)]
    copy = _moved(tensor, spec.batch_dim, 0).clone(memory_format=torch.contiguous_format)  # one copy for all requests
    return unpadded_views(_moved(copy, 0, spec.batch_dim), spec, lengths)


def unpadded_views(tensor: torch.Tensor, spec: TensorSpec, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Return the same parts as `unpad`, as views: for a tensor that the caller owns.

    Raises `ValueError`: as `unpad`.
    """
    rows = 1 if spec.batch_dim is None else tensor.shape[spec.batch_dim]
    if len(lengths) > rows:
        raise ValueError(f"{spec.name}: {len(lengths)} lengths for {rows} rows")
    if spec.time_dim is not None and lengths:
        longest = size_at(cast(str, spec.shape[spec.time_dim]), max(lengths))
        if longest > tensor.shape[spec.time_dim]:
            raise ValueError(f"{spec.name}: length {longest} of {tensor.shape[spec.time_dim]} timesteps")
    if spec.shape[:2] == ("batch", "time") and spec.item_time_dims == (0,) and tensor.is_contiguous():
        return _first_timesteps_of_rows(tensor, lengths)
    rows_of = (tensor,) if spec.batch_dim is None else tensor.unbind(spec.batch_dim)  # a select for each takes longer
    own = rows_of[: len(lengths)]
    if not spec.item_time_dims:
        return list(own)
    return [_first_timesteps(row, spec, length) for row, length in zip(own, lengths)]


def lengths_tensor(lengths: Sequence[int], bucket: Bucket) -> torch.Tensor:
    """Return the lengths of a bucket's rows, int64[B]; a dummy row has the shortest one, which the model takes.

    >>> lengths_tensor([3, 2], Bucket(4, 8))
    tensor([3, 2, 2, 2])

    Raises `ValueError`: more lengths than rows, or a length outside 1..T.
    """
    if len(lengths) > bucket.batch or min(lengths, default=1) < 1 or max(lengths, default=1) > bucket.length:
        raise ValueError(f"lengths {list(lengths)} do not fit a bucket of {bucket.batch} x {bucket.length}")
    rows = array("q", lengths)
    rows.extend([min(lengths, default=1)] * (bucket.batch - len(lengths)))
    return torch.frombuffer(rows, dtype=torch.int64)  # torch.tensor takes 20 times as long


_storage = getattr(torch.Tensor, "untyped_storage", torch.Tensor.storage)
"""The memory of a tensor; torch before 2.0 has only the second one."""


def storage_ptr(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor shares with its views."""
    return int(_storage(tensor).data_ptr())


def torch_dtype(spec: TensorSpec) -> torch.dtype:
    """Return the torch dtype that `spec.dtype` names.

    >>> torch_dtype(TensorSpec("ids", "int64", ("time",)))
    torch.int64
    """
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


@cache
def item_bytes(dtype: torch.dtype) -> int:
    """Return the bytes of a number; the dtypes of an old torch have no `itemsize`."""
    return torch.empty(0, dtype=dtype).element_size()


def padding_tensor(spec: TensorSpec, length: int, batch: int | None = None) -> torch.Tensor:
    """Return `spec.pad_value` everywhere in one request of `length` timesteps, or in a batch of so many rows.

    >>> padding_tensor(TensorSpec("ids", "int64", ("batch", "time")), length=3)
    tensor([0, 0, 0])
    >>> padding_tensor(TensorSpec("ids", "int64", ("batch", "time"), pad_value=1), length=3, batch=1)
    tensor([[1, 1, 1]])
    """
    sizes = spec.item_sizes(length) if batch is None else spec.sizes(batch, length)
    return torch.full(sizes, spec.pad_value, dtype=torch_dtype(spec))


class _Padding(dict[int, torch.Tensor]):
    """Padding of one layout by number of timesteps: views of one tensor, made on first use, the short ones kept."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.longest = padding_tensor(spec, 0)

    def __missing__(self, timesteps: int) -> torch.Tensor:
        (dim,) = self.spec.item_time_dims
        if timesteps > self.longest.shape[dim]:
            self.longest = padding_tensor(self.spec, 1 << timesteps.bit_length())
        view = self.longest.narrow(dim, 0, timesteps)
        if timesteps <= _MOST_VIEWS:
            self[timesteps] = view
        return view


_padding = cache(_Padding)


def _joined(items: Sequence[torch.Tensor], spec: TensorSpec, bucket: Bucket) -> torch.Tensor:
    """Concatenate the items along time, with padding between them: every cell is written once."""
    (dim,) = spec.item_time_dims
    padding = _padding(spec)
    if spec.shape[:2] == ("time", "batch") and abs(spec.pad_value) <= _EXACT:
        return _interleaved(items, padding, bucket)
    parts: list[torch.Tensor] = []
    for item in items:
        parts.append(item)
        missing = bucket.length - item.shape[dim]
        if missing:
            parts.append(padding[missing])
    parts += [padding[bucket.length]] * (bucket.batch - len(items))
    joined = torch.cat(parts, dim)
    if spec.batch_dim is None:
        return joined
    full = spec.item_sizes(bucket.length)
    return _moved(joined.view(*full[:dim], bucket.batch, *full[dim:]), dim, spec.batch_dim).contiguous()


def _interleaved(items: Sequence[torch.Tensor], padding: _Padding, bucket: Bucket) -> torch.Tensor:
    """Pad a time-major layout by torch's `pad_sequence`, so that nothing is moved twice."""
    rows = [*items, *[padding[bucket.length]] * (bucket.batch - len(items))]
    if all(len(row) < bucket.length for row in rows):  # the longest row determines the length of the result
        rows[0] = torch.cat([rows[0], padding[bucket.length - len(rows[0])]])
    return pad_sequence(rows, padding_value=padding.spec.pad_value)


def _stacked(items: Sequence[torch.Tensor], spec: TensorSpec, bucket: Bucket) -> torch.Tensor:
    """Stack items without time, or with several time dimensions, each padded separately."""
    padded = [_pad_item(item, spec, bucket.length) for item in items]
    if spec.batch_dim is None:
        return padded[0].contiguous()
    dummies = [padding_tensor(spec, bucket.length)] * (bucket.batch - len(items))
    return torch.stack(padded + dummies, spec.batch_dim)


def _moved(tensor: torch.Tensor, dim: int, to: int) -> torch.Tensor:
    return tensor if dim == to else tensor.movedim(dim, to)


def _pad_item(item: torch.Tensor, spec: TensorSpec, length: int) -> torch.Tensor:
    if not spec.item_time_dims:
        return item
    padded = padding_tensor(spec, length)
    _first_timesteps(padded, spec, item.shape[spec.item_time_dims[0]]).copy_(item)
    return padded


def _first_timesteps(item: torch.Tensor, spec: TensorSpec, length: int) -> torch.Tensor:
    for dim in spec.item_time_dims:
        item = item.narrow(dim, 0, size_at(cast(str, spec.item_shape[dim]), length))
    return item


def _first_timesteps_of_rows(tensor: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Cut [B, T, ...] in one call: a view for each row takes three times as long."""
    sizes = [size for length in lengths for size in (length, tensor.shape[1] - length)]
    sizes.append((tensor.shape[0] - len(lengths)) * tensor.shape[1])
    return list(tensor.flatten(0, 1).split_with_sizes(sizes)[: 2 * len(lengths) : 2])


def _check_items(items: Sequence[torch.Tensor], spec: TensorSpec, full: tuple[int, ...]) -> None:
    """Require that each item is as declared and not longer than one of sizes `full`."""
    dtype, times, expected = torch_dtype(spec), spec.item_time_dims, list(full)
    for index, item in enumerate(items):
        shape = item.shape
        if len(shape) == len(full):
            for dim in times:
                expected[dim] = shape[times[0]]
        if item.dtype is not dtype or [*shape] != expected or shape > full:
            raise ValueError(
                f"{spec.name}, item {index}: expected {spec.dtype} {_described(spec, full)}, "
                f"got {str(item.dtype).removeprefix('torch.')} {list(shape)}"
            )


def _described(spec: TensorSpec, full: tuple[int, ...]) -> str:
    sizes = (f"time<={size}" if name == "time" else str(size) for name, size in zip(spec.item_shape, full))
    return f"[{', '.join(sizes)}]"
