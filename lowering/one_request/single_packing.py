"""Packing of one request alone, while it is traced: packed data are its timesteps, [T, ...]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch.nn.utils import rnn as rnn_utils
from torch.utils import _pytree as pytree

from ..errors import LoweringError, calling_line, source_suffix
from ..packing.packed_placeholder import (
    PACKED_FACTS,
    PACKED_TAG,
    TORCH_RNN_FILES,
    PackedPlaceholder,
    is_identity,
    packed_use_error,
    placeholder_of,
    reject_packed_outputs,
    same_size,
)
from ..packing.packed_rules import PACKED_RULES, masked_recurrence, padded_recurrence
from ..packing.recurrence_fit import swapped_axes
from .element_facts import value_range, with_range, with_uniform_value
from .known_numbers import known_values, with_known_values

_PARTS = {"data", "to", "cpu", "cuda", "clone", "detach", "contiguous"}
"""Names of what reads packed data as it is."""
_REDUCED = "_neuron_lstm_reduced"


def _packed(data: torch.Tensor, producer: str) -> torch.Tensor:
    """Mark the data of a PackedSequence, [T, ...]."""
    setattr(data, PACKED_TAG, PackedPlaceholder(data, data, producer, True, calling_line()))
    return data


def follow_packed(name: str, args: Any, kwargs: Any, result: Any) -> None:
    """Mark what is computed from packed data timestep by timestep, and what is reduced over all timesteps.

    A reduction is that of the request alone. Returned as it is, it is refused (`reject_packed_results`).
    """
    operands = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    packed = next((found for found in map(placeholder_of, operands) if found is not None), None)
    reduced = next((getattr(value, _REDUCED) for value in operands if hasattr(value, _REDUCED)), None)
    for tensor in pytree.tree_leaves(result) if packed or reduced else ():
        if not isinstance(tensor, torch.Tensor):
            continue
        if packed is not None and tensor.dim() and same_size(tensor.shape[0], packed.padded.shape[0]):
            setattr(tensor, PACKED_TAG, replace(packed, computed=name not in _PARTS))
        elif packed is not None:
            setattr(tensor, _REDUCED, packed_use_error(packed, f"aten::{name.strip('_')}", calling_line()))
        elif len(operands) == 1:
            setattr(tensor, _REDUCED, reduced)


def reject_packed_results(outputs: object) -> None:
    """Refuse packed data as an output, and what is reduced from it only, which has no batch dimension.

    A layer on packed data gives one request's timesteps, [T, ...].

    Raises `LoweringError`: in the words of the Neuron compiler.
    """
    for leaf in pytree.tree_leaves(outputs, is_leaf=lambda value: isinstance(value, rnn_utils.PackedSequence)):
        packed = placeholder_of(leaf)
        if isinstance(leaf, rnn_utils.PackedSequence) or (packed is not None and not packed.computed):
            reject_packed_outputs(leaf)
        if (error := getattr(leaf, _REDUCED, None)) is not None:
            raise error


def pack(mode: object, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the timesteps of the request, [T, ...], as packed data, and its batch sizes."""
    data, lengths, batch_first = args
    steps = known_values(lengths).reshape(-1)[0]  # others are inner sequences
    rows = data.squeeze(0 if batch_first else 1)
    rows = rows if same_size(steps, rows.shape[0]) else rows[:steps]
    rows, known = _packed(rows.clone(), "aten::_pack_padded_sequence"), value_range(data)
    if known is not None:
        with_range(rows, known.bounds, known.use)
    count: Any = rows.shape[0]
    sizes = with_uniform_value(torch.ones(count, dtype=torch.int64), 1)  # one row for each timestep
    return rows, with_known_values(sizes, [1] * count) if isinstance(count, int) else sizes


def pad(mode: object, func: Any, args: Any, kwargs: Any) -> Any:
    """Return packed data with the dimension of the batch again, and the lengths."""
    data, _, batch_first, padding_value, total = args
    steps = data.shape[0]
    if not same_size(total, steps):
        data = torch.nn.functional.pad(data, (*[0, 0] * (data.dim() - 1), 0, total - steps), value=padding_value)
    lengths = with_known_values(torch.full((1,), steps, dtype=torch.int64), [steps])
    return data.unsqueeze(0 if batch_first else 1), lengths


def recurrence(cell: str, mode: object, func: Any, args: Any, kwargs: Any) -> Any:
    """Run _VF.lstm, _VF.gru, _VF.rnn_tanh or _VF.rnn_relu, packed or padded."""
    if not isinstance(args[1], torch.Tensor) or not isinstance(args[3], (list, tuple)):
        return padded_recurrence(cell, args)
    x, _, state, weights, bias, layers, _, _, bidirectional = args
    y, *states = masked_recurrence(cell, x.unsqueeze(0), None, state, weights, bias, layers, bidirectional)
    return _packed(y.squeeze(0), f"aten::{cell}"), *states


def inverse(permutation: Any, original: Callable[..., Any]) -> Any:
    """Invert a permutation; that of one row is its own inverse, and a write in place would fill the whole graph."""
    known = known_values(permutation)
    is_alone = known is not None and known.tolist() == [0]
    return permutation if is_alone or is_identity(permutation) else original(permutation)


_OF_PACKED = {"_pad_packed_sequence", "lstm", "gru", "rnn_tanh", "rnn_relu", "__getitem__"}


def _is_inner(value: object) -> bool:
    """Whether a tensor represents packed sequences within one request."""
    packed = placeholder_of(value)
    return packed is not None and packed.lengths is not packed.padded


def inner_result(name: str, caller: CodeType, args: Any, kwargs: Any) -> Any:
    """Return the result of a call on sequences within one request; NotImplemented for other calls.

    Raises `LoweringError`: the lengths are those of the request, computed from data.
    Raises `LoweringError`: the lengths are not known to fit, or the padded length depends on them.
    """
    if name == "index_select" and caller is rnn_utils.pack_padded_sequence.__code__:
        data, dim, order = args
        if same_size(order.shape[0], 1) and not same_size(data.shape[dim], 1):  # timesteps in the place of the batch
            raise swapped_axes("pack_padded_sequence")
    if name in ("sort", "_pack_padded_sequence"):
        lengths = args[1] if name == "_pack_padded_sequence" else args[0]
        if known_values(lengths) is not None or not isinstance(lengths, torch.Tensor) or lengths.dim() != 1:
            return NotImplemented
        if name == "_pack_padded_sequence":
            rows, steps = args[0].shape[:2] if args[2] else args[0].shape[1::-1]
            _check_lengths(lengths, rows, steps)
    elif not _concerns_inner(name, args):
        _reject_other_use(name, caller, args, kwargs)
        return NotImplemented
    elif name == "_pad_packed_sequence":
        _check_total(args[0], args[4])
    return PACKED_RULES[name](None, caller, args, kwargs)


def _reject_other_use(name: str, caller: CodeType, args: Any, kwargs: Any) -> None:
    """Refuse what is neither a recurrence nor unpacking, such as a layer on `packed.data`."""
    used = any(_is_inner(value) for value in pytree.tree_leaves((args, kwargs)))
    if used and name not in PACKED_FACTS and caller.co_filename not in TORCH_RNN_FILES:
        raise LoweringError(
            f"{name.strip('_')} takes the data of packed sequences within a timestep{source_suffix(calling_line())}: "
            "pad them with pad_packed_sequence(..., total_length=...) first, and mask what is beyond their lengths"
        )


def _concerns_inner(name: str, args: Any) -> bool:
    if name in _OF_PACKED and args and _is_inner(args[0]):
        return True
    return name in ("to", "cpu", "index_select", "__getitem__") and any(map(is_identity, pytree.tree_leaves(args)))


def _check_lengths(lengths: torch.Tensor, rows: Any, steps: Any) -> None:
    """Require lengths that packing accepts for every request."""
    if same_size(rows, 1) and not isinstance(steps, int):
        raise LoweringError(
            f"pack_padded_sequence takes lengths that are computed from data{source_suffix(calling_line())}; name the "
            "argument with the true lengths under `lengths`, or declare under `inputs` the `range` of the ids or the "
            "mask that they are counted from, without padding, and count by a comparison, as in (ids != 0).sum(1)"
        )
    known = value_range(lengths)
    if known is not None and known.bounds[0] >= 1 and isinstance(steps, int) and known.bounds[1] <= steps:
        known.use()
        return
    said = f"from {known.bounds[0]:g} to {known.bounds[1]:g}" if known else "of no known range"
    raise LoweringError(
        f"pack_padded_sequence takes lengths {said}{source_suffix(calling_line())}: declare the "
        f"range of the input that they come from, such as range: [1, {steps}], or name the argument under `lengths` "
        "if it has the lengths of the requests"
    )


def _check_total(data: torch.Tensor, total: Any) -> None:
    packed = placeholder_of(data)
    if packed is not None and not same_size(total, packed.padded.shape[1]):
        raise LoweringError(
            f"pad_packed_sequence pads to the longest of its sequences, which is data{source_suffix(calling_line())}: "
            f"pass total_length={packed.padded.shape[1]}"
        )
