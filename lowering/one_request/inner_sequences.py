"""Sequences within one request, packed by lengths of its data, such as the characters of words.

They are rows of a batch that folds into the request's own timesteps, [B, T, W, ...] -> [B * T, W, ...]. Their layers
are masked as those of a padded batch are (`packed_rules.py`). Their lengths must be known to fit, by the declared
range of the input that they come from: in eager mode, packing refuses others.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import DecisiveRefusal, LoweringError, calling_line, source_suffix
from ..packing.packed_placeholder import PACKED_FACTS, TORCH_RNN_FILES, is_identity, placeholder_of
from ..packing.packed_rules import PACKED_RULES
from ..packing.padded_batch import PaddedBatch, same_size
from .known_numbers import known_values
from .value_ranges import value_range

_UNMASKED = PaddedBatch(rows=None, timesteps=None, lengths=None)
_OF_PACKED = {"_pad_packed_sequence", "lstm", "gru", "rnn_tanh", "rnn_relu", "__getitem__"}
_OF_IDENTITY = {"to", "cpu", "empty_like", "scatter_", "index_select", "__getitem__"}


def is_inner(value: object) -> bool:
    """Whether a tensor represents packed sequences within one request."""
    packed = placeholder_of(value)
    return packed is not None and packed.lengths is not packed.padded


def inner_result(name: str, caller: CodeType, args: Any, kwargs: Any) -> Any:
    """Return the result of a call on sequences within one request; NotImplemented for other calls.

    Raises:
        LoweringError: the lengths are those of the request, computed from data.
        DecisiveRefusal: the lengths are not known to fit, or the padded length depends on them.
    """
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
    return PACKED_RULES[name](_UNMASKED, caller, args, kwargs)


def _reject_other_use(name: str, caller: CodeType, args: Any, kwargs: Any) -> None:
    """Refuse what is neither a recurrence nor unpacking, such as a layer on `packed.data`.

    Raises:
        DecisiveRefusal: names the line.
    """
    used = any(is_inner(value) for value in pytree.tree_leaves((args, kwargs)))
    if used and name not in PACKED_FACTS and caller.co_filename not in TORCH_RNN_FILES:
        raise DecisiveRefusal(
            f"{name.strip('_')} takes the data of packed sequences within a timestep{source_suffix(calling_line())}: "
            "pad them with pad_packed_sequence(..., total_length=...) first, and mask what is beyond their lengths"
        )


def _concerns_inner(name: str, args: Any) -> bool:
    if name in _OF_PACKED and args and is_inner(args[0]):
        return True
    tensors = [value for value in pytree.tree_leaves(args) if isinstance(value, torch.Tensor)]
    return name in _OF_IDENTITY and any(is_identity(tensor) for tensor in tensors)


def _check_lengths(lengths: torch.Tensor, rows: Any, steps: Any) -> None:
    """Require lengths that packing accepts for every request.

    Raises:
        LoweringError: they are lengths of the request itself.
        DecisiveRefusal: their range is not known, or exceeds the sequences.
    """
    if same_size(rows, 1):
        raise LoweringError(
            f"pack_padded_sequence takes lengths that are computed from data{source_suffix(calling_line())}; name the "
            "argument with the true lengths under `lengths`"
        )
    known = value_range(lengths)
    if known is not None and known.bounds[0] >= 1 and isinstance(steps, int) and known.bounds[1] <= steps:
        known.use()
        return
    said = f"from {known.bounds[0]:g} to {known.bounds[1]:g}" if known else "of no known range"
    raise DecisiveRefusal(
        f"pack_padded_sequence takes lengths within a timestep {said}{source_suffix(calling_line())}: declare the "
        f"range of the input that they come from, such as range: [1, {steps}], or name the argument under `lengths` "
        "if it has the lengths of the requests"
    )


def _check_total(data: torch.Tensor, total: Any) -> None:
    packed = placeholder_of(data)
    if packed is not None and not same_size(total, packed.padded.shape[1]):
        raise DecisiveRefusal(
            f"pad_packed_sequence pads to the longest of its sequences, which is data{source_suffix(calling_line())}: "
            f"pass total_length={packed.padded.shape[1]}"
        )
