"""Rules of the PackedSequence tracing mode: the result of each intercepted function of torch.

A rule takes the traced batch, the code that calls the function, and the function's arguments. It returns NotImplemented
for calls that torch answers. Where a model reads the last timestep of a request, each row of the batch has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import rnn as rnn_utils

from ..errors import LoweringError, Unproved, calling_line, source_suffix
from .packed_placeholder import (
    IDENTITY_TAG,
    PACKED_TAG,
    TORCH_RNN_FILES,
    PackedPlaceholder,
    is_identity,
    placeholder_of,
)
from .padded_batch import PaddedBatch, TracedLengths, same_size
from .recurrence_fit import check_axes, check_recurrence


def _placeholder(padded: torch.Tensor, lengths: torch.Tensor, producer: str, zero_on_padding: bool) -> torch.Tensor:
    """Create a tensor with the rank and features of packed data; it is dead code in the graph."""
    data = padded.select(1, 0)
    setattr(data, PACKED_TAG, PackedPlaceholder(padded, lengths, producer, zero_on_padding, calling_line()))
    return data


def viewed(*args: Any, **kwargs: Any) -> Any:
    """Call `Tensor.view`; copy where the strides differ from those of torch's own layers.

    A time-major layer returns a contiguous tensor in eager mode, which can be viewed in any shape.
    """
    try:
        return torch.Tensor.view(*args, **kwargs)
    except (RuntimeError, ValueError):
        if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
            raise
        return torch.Tensor.reshape(*args, **kwargs)


def _view(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    return NotImplemented if placeholder_of(args[0]) is not None else viewed(*args, **kwargs)


def _pack(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    data, lengths, batch_first = args
    padded = data if batch_first else data.transpose(0, 1)
    data = _placeholder(padded, lengths, "aten::_pack_padded_sequence", zero_on_padding=False)
    batch_sizes = lengths.new_empty(0)
    setattr(batch_sizes, PACKED_TAG, placeholder_of(data))
    return data, batch_sizes


def _pad(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    data, _, batch_first, padding_value, total_length = args
    packed = placeholder_of(data)
    if packed is None:
        return NotImplemented
    padded = packed.padded
    if padding_value != 0 or not packed.zero_on_padding:
        valid = torch.arange(padded.shape[1]) < packed.lengths.unsqueeze(1)
        valid = valid.reshape(*valid.shape, *[1] * (padded.dim() - 2))
        padded = torch.where(valid, padded, padding_value)
    # 0 is the length of the placeholder of batch_sizes: no total_length was given.
    if not same_size(total_length, 0) and not same_size(total_length, padded.shape[1]):
        if not isinstance(total_length, int):
            raise LoweringError(
                "pad_packed_sequence's total_length is neither a constant nor the time dimension"
                f"{source_suffix(calling_line())}"
            )
        if batch.max_length is None or total_length < batch.max_length[0]:
            batch.max_length = total_length, calling_line()
        filler = padded.new_full((padded.shape[0], total_length, *padded.shape[2:]), padding_value)
        padded = torch.cat([padded, filler], 1)[:, :total_length]
    return padded if batch_first else padded.transpose(0, 1), packed.lengths


def _recurrence(cell: str) -> Callable[..., Any]:
    """Return the rule for _VF.lstm, _VF.gru, _VF.rnn_tanh and _VF.rnn_relu, packed or padded."""

    def rule(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
        packed = placeholder_of(args[0])
        lengths: torch.Tensor | None
        if packed is not None:
            x, lengths = packed.padded, packed.lengths
            _, _, state, weights, bias, layers, _, _, bidirectional = args
        else:
            x, state, weights, bias, layers, _, _, bidirectional, batch_first = args
            x = x if batch_first else x.transpose(0, 1)
            lengths = batch.mask_lengths(x)
        check_axes(cell, swapped=batch.has_swapped_axes(x))
        y, *states = masked_recurrence(cell, x, lengths, state, weights, bias, layers, bidirectional)
        if packed is not None:
            return _placeholder(y, packed.lengths, f"aten::{cell}", zero_on_padding=True), *states
        return y if batch_first else y.transpose(0, 1), *states

    return rule


def _sort(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    # pack_padded_sequence(enforce_sorted=False): a masked program needs no order, so the permutation is the identity.
    if caller is not rnn_utils.pack_padded_sequence.__code__:
        return NotImplemented
    permutation = torch.arange(args[0].shape[0])
    setattr(permutation, IDENTITY_TAG, True)
    return args[0], permutation


def _returns_identity(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    """Return the identity permutation for the functions that do not change it.

    They are `.to()`, `.cpu()`, `empty_like()` and `scatter_()`.
    """
    if args and (
        is_identity(args[0]) or (placeholder_of(args[0]) is not None and caller.co_filename in TORCH_RNN_FILES)
    ):
        return args[0]
    return NotImplemented


def _index_select(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    return args[0] if len(args) == 3 and is_identity(args[2]) else NotImplemented


def _getitem(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    tensor, key = args
    packed = placeholder_of(tensor)
    if packed is not None and tensor.dim() == 1 and caller.co_filename in TORCH_RNN_FILES:
        return packed.padded.shape[0]  # batch_sizes[0]
    if isinstance(key, torch.Tensor) and is_identity(key):
        return tensor
    return _read_last_step(batch, tensor, key)


def _select(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    arguments = (*args, *kwargs.values())
    if len(arguments) != 3:
        return NotImplemented
    tensor, dim, index = arguments
    if not isinstance(tensor, torch.Tensor) or not isinstance(dim, int) or index != -1:
        return NotImplemented
    dim = dim % tensor.dim()
    return _read_last_step(batch, tensor, (*[slice(None)] * dim, -1))


def _as_tensor(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    return args[0].tensor if args and isinstance(args[0], TracedLengths) else NotImplemented


def _iterate(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if caller is torch.Tensor.__iter__.__code__ and tensor.dim() == 1 and same_size(tensor.shape[0], batch.rows):
        return iter(TracedLengths(tensor))
    return NotImplemented


def _len(batch: PaddedBatch, caller: Any, args: Any, kwargs: Any) -> Any:
    # Python converts the result of len() to an int, which fixes the size: the exporter refuses it without a line.
    size = args[0].shape[0] if args[0].dim() else None
    if placeholder_of(args[0]) is not None or not isinstance(size, torch.SymInt):
        return NotImplemented
    line = calling_line()
    raise Unproved(
        f"the model takes len() of a tensor whose first dimension varies{source_suffix(line)}: that fixes the "
        "dimension. Take its size(0) instead."
    )


PACKED_RULES: dict[str, Callable[..., Any]] = {
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _pad,
    **{cell: _recurrence(cell) for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    "sort": _sort,
    "to": _returns_identity,
    "cpu": _returns_identity,
    "cuda": lambda batch, caller, args, kwargs: args[0],
    "empty_like": _returns_identity,
    "scatter_": _returns_identity,
    "index_select": _index_select,
    "__getitem__": _getitem,
    "__len__": _len,
    "view": _view,
    "select": _select,
    "as_tensor": _as_tensor,
    "tensor": _as_tensor,
    "unbind": _iterate,
}


def masked_recurrence(
    cell: str, x: torch.Tensor, lengths: torch.Tensor | None, state: Any, weights: Any, *options: Any
) -> tuple[torch.Tensor, ...]:
    """Call the abstract operator of a cell over x[B, T, F]; `options` are bias, layers and bidirectional."""
    check_recurrence(cell, x, weights)
    results: tuple[torch.Tensor, ...]
    if cell == "lstm":
        results = torch.ops.neuron_lstm.lstm(x, lengths, *state, weights, *options, True)
    else:
        results = torch.ops.neuron_lstm.rnn(x, lengths, state, weights, cell, *options)
    return results


_LAST_SLICE = slice(-1, None)


def _read_last_step(batch: PaddedBatch, tensor: torch.Tensor, key: Any) -> Any:
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
