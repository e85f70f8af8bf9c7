"""Rules of the PackedSequence tracing mode: the result of each intercepted function of torch.

A rule takes the number of rows, the code that calls the function, and the arguments. It returns NotImplemented
for calls that torch answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.utils import rnn as rnn_utils

from ..errors import LoweringError, calling_line, source_suffix
from .packed_placeholder import (
    IDENTITY_TAG,
    PACKED_TAG,
    TORCH_RNN_FILES,
    PackedPlaceholder,
    is_identity,
    placeholder_of,
    same_size,
)
from .recurrence_fit import check_recurrence


def _placeholder(padded: torch.Tensor, lengths: torch.Tensor, producer: str, zero_on_padding: bool) -> torch.Tensor:
    """Create a tensor with the rank and features of packed data; it is dead code in the graph."""
    data = padded.select(1, 0)
    setattr(data, PACKED_TAG, PackedPlaceholder(padded, lengths, producer, zero_on_padding, calling_line()))
    return data


def viewed(*args: Any, **kwargs: Any) -> Any:
    """Call `Tensor.view`; copy where torch's own layers have other strides: theirs can be viewed in any shape."""
    try:
        return torch.Tensor.view(*args, **kwargs)
    except (RuntimeError, ValueError):
        if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
            raise
        return torch.Tensor.reshape(*args, **kwargs)


def _pack(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    data, lengths, batch_first = args
    padded = data if batch_first else data.transpose(0, 1)
    data = _placeholder(padded, lengths, "aten::_pack_padded_sequence", zero_on_padding=False)
    batch_sizes = lengths.new_empty(0)
    setattr(batch_sizes, PACKED_TAG, placeholder_of(data))
    return data, batch_sizes


def _pad(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    data, _, batch_first, padding_value, total_length = args
    if (packed := placeholder_of(data)) is None:
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
        filler = padded.new_full((padded.shape[0], total_length, *padded.shape[2:]), padding_value)
        padded = torch.cat([padded, filler], 1)[:, :total_length]
    return padded if batch_first else padded.transpose(0, 1), packed.lengths


def _recurrence(cell: str, rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    """Run _VF.lstm, _VF.gru, _VF.rnn_tanh or _VF.rnn_relu, packed or padded."""
    if (packed := placeholder_of(args[0])) is None:
        return padded_recurrence(cell, args)
    _, _, state, weights, bias, layers, _, _, bidirectional = args
    y, *states = masked_recurrence(cell, packed.padded, packed.lengths, state, weights, bias, layers, bidirectional)
    return _placeholder(y, packed.lengths, f"aten::{cell}", zero_on_padding=True), *states


def padded_recurrence(cell: str, args: Any) -> Any:
    """Run a recurrent layer on padded data, by the arguments of torch's function."""
    x, state, weights, bias, layers, _, _, bidirectional, batch_first = args
    x = x if batch_first else x.transpose(0, 1)
    y, *states = masked_recurrence(cell, x, None, state, weights, bias, layers, bidirectional)
    return y if batch_first else y.transpose(0, 1), *states


def _sort(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    # pack_padded_sequence(enforce_sorted=False): a masked program needs no order, so the permutation is the identity.
    if caller is not rnn_utils.pack_padded_sequence.__code__:
        return NotImplemented
    permutation = torch.arange(args[0].shape[0])
    setattr(permutation, IDENTITY_TAG, True)
    return args[0], permutation


def _returns_identity(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    """Return the identity permutation for the functions that do not change it."""
    first = args[0] if args else None
    is_packed = placeholder_of(first) is not None and caller.co_filename in TORCH_RNN_FILES
    return first if is_identity(first) or is_packed else NotImplemented


def _index_select(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    return args[0] if len(args) == 3 and is_identity(args[2]) else NotImplemented


def _getitem(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    tensor, key = args
    packed = placeholder_of(tensor)
    if packed is not None and tensor.dim() == 1 and caller.co_filename in TORCH_RNN_FILES:
        return packed.padded.shape[0]  # batch_sizes[0]
    return tensor if isinstance(key, torch.Tensor) and is_identity(key) else NotImplemented


PACKED_RULES: dict[str, Callable[..., Any]] = {
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _pad,
    **{cell: partial(_recurrence, cell) for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    "sort": _sort,
    **dict.fromkeys(("to", "cpu", "empty_like", "scatter_"), _returns_identity),
    "index_select": _index_select,
    "__getitem__": _getitem,
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
