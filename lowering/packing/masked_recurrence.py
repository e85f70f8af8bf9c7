"""Call of the abstract operator of a recurrence, which engines replace by their own."""

from __future__ import annotations

from typing import Any

import torch

from ...backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators
from .recurrence_fit import check_recurrence


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
