"""The last timestep of each row of a padded batch, where a model reads the last one of a request."""

from __future__ import annotations

from typing import Any

import torch

from .packed_placeholder import placeholder_of
from .padded_batch import PaddedBatch, same_size

_LAST_SLICE = slice(-1, None)


def read_last_step(batch: PaddedBatch, tensor: torch.Tensor, key: Any) -> Any:
    """Read each row's own last step for `y[:, -1]` or `y[:, -1:]` over time.

    Padding is not read, as for a request without padding. Returns NotImplemented for other keys and tensors.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if (
        batch.lengths is None
        or placeholder_of(tensor) is not None
        or not all(isinstance(k, (int, slice)) or k is Ellipsis for k in keys)
    ):
        return NotImplemented
    keys = _without_ellipsis(keys, tensor.dim())
    last_dims = [dim for dim, k in enumerate(keys) if k in (-1, _LAST_SLICE)]
    steps = [dim for dim in last_dims if same_size(tensor.shape[dim], batch.timesteps)]
    rows = [dim for dim, size in enumerate(tensor.shape) if same_size(size, batch.rows)]
    if len(steps) != 1 or not rows or rows[0] == steps[0]:
        return NotImplemented
    return _read(_gather_last(tensor, steps[0], rows[0], batch.lengths), keys, steps[0])


def _without_ellipsis(keys: tuple[Any, ...], dims: int) -> tuple[Any, ...]:
    if Ellipsis not in keys:
        return keys
    gap = keys.index(Ellipsis)
    return (*keys[:gap], *[slice(None)] * (dims - len(keys) + 1), *keys[gap + 1 :])


def _gather_last(tensor: torch.Tensor, time: int, rows: int, lengths: torch.Tensor) -> torch.Tensor:
    """The last step of each row: the tensor with one timestep in the dimension of time."""
    index = (lengths - 1).reshape([-1 if dim == rows else 1 for dim in range(tensor.dim())])
    return tensor.gather(time, index.expand([1 if dim == time else size for dim, size in enumerate(tensor.shape)]))


def _read(last: torch.Tensor, keys: tuple[Any, ...], time: int) -> torch.Tensor:
    """Apply the other keys; the dimension of time remains where its key is a slice."""
    if keys[time] == _LAST_SLICE:
        rest = (*keys[:time], slice(None), *keys[time + 1 :])
    else:
        last, rest = last.squeeze(time), (*keys[:time], *keys[time + 1 :])
    return last[rest] if any(k != slice(None) for k in rest) else last
