"""Recurrences for OpenVINO: masks, and layers without lengths.

Its LSTM ignores lengths that are not known at compilation.

Used only while packaging: archives do not contain this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from . import masked
from .exported_program import quiet


def without_lengths(program: ExportedProgram) -> ExportedProgram:
    """Return the program with masks, and recurrences without lengths, each of one layer in one direction."""
    table = {torch.ops.neuron_lstm.lstm.default: _lstm, torch.ops.neuron_lstm.rnn.default: _rnn}
    with quiet():
        decomposed: ExportedProgram = program.run_decompositions(table)
    return decomposed


def _lstm(x: Any, lengths: Any, h_0: Any, c_0: Any, *options: Any) -> Any:
    if lengths is None and not masked.is_projected(h_0, c_0):
        return NotImplemented
    return masked.fused_lstm(_lstm_layer, x, lengths, h_0, c_0, *options)


def _lstm_layer(
    x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """One layer in one direction, fused over all timesteps."""
    h_0, c_0 = states
    y, h_n, c_n = torch.ops.neuron_lstm.lstm(
        x.transpose(0, 1), None, h_0[None], c_0[None], list(weights), len(weights) == 4, 1, False, True
    )
    return y.transpose(0, 1), (h_n[0], c_n[0])


def _rnn(x: Any, lengths: Any, h_0: Any, weights: Any, cell: str, bias: bool, layers: int, both: bool) -> Any:
    if lengths is None:
        return NotImplemented

    def layer(
        x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        y, h_n = torch.ops.neuron_lstm.rnn(
            x.transpose(0, 1), None, states[0][None], list(weights), cell, len(weights) == 4, 1, False
        )
        return y.transpose(0, 1), (h_n[0],)

    return masked.masked_rnn(layer, x, lengths, h_0, weights, layers, both)
