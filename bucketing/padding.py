"""Into a bucket and out of it: `pad` and `unpad` are each other's inverse.

Only this file and `execute` know of torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .errors import BrokenInvariant
from .grid import Bucket
from .spec import TensorSpec


def pad(items: Sequence[torch.Tensor], spec: TensorSpec, bucket: Bucket) -> torch.Tensor:
    """The requests' tensors, each of `spec.item_shape`, as one contiguous tensor of `spec.sizes(*bucket)`.

    What no request fills, timesteps and whole rows alike, holds `spec.pad_value`. A single request that fills its
    bucket is not copied.

    >>> ids = TensorSpec("ids", "int64", ("batch", "time"), pad_value=7)
    >>> pad([torch.tensor([1, 2, 3]), torch.tensor([4])], ids, Bucket(3, 4))
    tensor([[1, 2, 3, 7],
            [4, 7, 7, 7],
            [7, 7, 7, 7]])

    Raises:
        ValueError: an item has not the shape or dtype of `spec`, or does not fit the bucket.
    """
    rows = bucket.batch if spec.batch_dim is not None else 1
    if not 1 <= len(items) <= rows:
        raise ValueError(f"{spec.name}: {len(items)} items for a bucket of {rows} rows")
    limits = _item_sizes(spec, bucket.length)
    times = _time_dims(spec)
    for index, item in enumerate(items):
        _check_item(item, spec, limits, times, index)
    if rows == 1 and tuple(items[0].shape) == limits and items[0].is_contiguous():
        return items[0] if spec.batch_dim is None else items[0].unsqueeze(spec.batch_dim)
    padded = torch.full(spec.sizes(*bucket), spec.pad_value, dtype=torch_dtype(spec))
    for row, item in enumerate(items):
        _part(padded, spec, row, times, item.shape[times[0]] if times else 0).copy_(item)
    return padded


def unpad(tensor: torch.Tensor, spec: TensorSpec, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Each request's part of a padded tensor: its row, its own number of timesteps, without the batch dimension.

    The parts are contiguous copies: an engine may overwrite `tensor` in its next run.

    >>> ids = TensorSpec("ids", "int64", ("batch", "time"))
    >>> unpad(torch.tensor([[1, 2, 3, 7], [4, 7, 7, 7], [7, 7, 7, 7]]), ids, [3, 1])
    [tensor([1, 2, 3]), tensor([4])]

    Raises:
        ValueError: there are more lengths than rows, or a length beyond the tensor's timesteps.
    """
    rows = 1 if spec.batch_dim is None else tensor.shape[spec.batch_dim]
    if len(lengths) > rows:
        raise ValueError(f"{spec.name}: {len(lengths)} lengths for {rows} rows")
    times = _time_dims(spec)
    if spec.time_dim is not None and max(lengths, default=0) > tensor.shape[spec.time_dim]:
        raise ValueError(f"{spec.name}: length {max(lengths)} of {tensor.shape[spec.time_dim]} timesteps")
    return [
        _part(tensor, spec, row, times, length).clone(memory_format=torch.contiguous_format)
        for row, length in enumerate(lengths)
    ]


def lengths_tensor(lengths: Sequence[int], bucket: Bucket) -> torch.Tensor:
    """The lengths of a bucket's rows, int64[B]. A dummy row counts as one timestep, for engines refuse 0.

    >>> lengths_tensor([3, 2], Bucket(4, 8))
    tensor([3, 2, 1, 1])

    Raises:
        ValueError: more lengths than rows, or a length outside 1..T.
    """
    if len(lengths) > bucket.batch or not all(1 <= length <= bucket.length for length in lengths):
        raise ValueError(f"lengths {list(lengths)} do not fit a bucket of {bucket.batch} x {bucket.length}")
    return torch.tensor([*lengths, *[1] * (bucket.batch - len(lengths))], dtype=torch.int64)


def torch_dtype(spec: TensorSpec) -> torch.dtype:
    """The torch dtype that `spec.dtype` names.

    >>> torch_dtype(TensorSpec("ids", "int64", ("time",)))
    torch.int64
    """
    dtype = getattr(torch, spec.dtype)
    if not isinstance(dtype, torch.dtype):
        raise BrokenInvariant(f"{spec.name} has the dtype {spec.dtype!r}, which torch does not know")
    return dtype


def _item_sizes(spec: TensorSpec, length: int) -> tuple[int, ...]:
    """`spec.item_shape` in numbers, for an item that fills the bucket."""
    return tuple(length if isinstance(size, str) else size for size in spec.item_shape)


def _time_dims(spec: TensorSpec) -> tuple[int, ...]:
    """Every time dimension of an item: an attention map has two."""
    return tuple(dim for dim, size in enumerate(spec.item_shape) if size == "time")


def _check_item(
    item: torch.Tensor, spec: TensorSpec, limits: tuple[int, ...], times: tuple[int, ...], index: int
) -> None:
    expected = list(limits)
    if times and item.dim() == len(limits):
        for dim in times:
            expected[dim] = min(item.shape[times[0]], limits[dim])
    if list(item.shape) != expected or item.dtype != torch_dtype(spec):
        raise ValueError(
            f"{spec.name}, item {index}: expected {spec.dtype} {_described(spec, limits)}, "
            f"got {str(item.dtype).removeprefix('torch.')} {list(item.shape)}"
        )


def _described(spec: TensorSpec, limits: tuple[int, ...]) -> str:
    sizes = (
        f"time<={limit}" if name == "time" else str(limit) for name, limit in zip(spec.item_shape, limits, strict=True)
    )
    return f"[{', '.join(sizes)}]"


def _part(tensor: torch.Tensor, spec: TensorSpec, row: int, times: tuple[int, ...], length: int) -> torch.Tensor:
    """The view of one row, cut to `length` timesteps."""
    part = tensor if spec.batch_dim is None else tensor.select(spec.batch_dim, row)
    for dim in times:
        part = part.narrow(dim, 0, length)
    return part
