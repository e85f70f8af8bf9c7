"""Standard cells in a loop, computed as one recurrent layer over all timesteps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ..packing.masked_recurrence import masked_recurrence

_aten = torch.ops.aten
CELLS = {
    _aten.lstm_cell.default: "lstm",
    _aten.gru_cell.default: "gru",
    _aten.rnn_tanh_cell.default: "rnn_tanh",
    _aten.rnn_relu_cell.default: "rnn_relu",
}


def run_cell(
    cell: str, x: torch.Tensor, initial: Sequence[torch.Tensor], weights: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Run a cell over x[T, N, F] from states [N, H].

    Returns the states of every timestep [T, N, H], and the last ones [N, H].
    `weights` are those of nn.LSTMCell, nn.GRUCell or nn.RNNCell in their order; biases may be None.
    """
    given = [weight for weight in weights if weight is not None]
    states = [state.unsqueeze(0) for state in initial]
    state = tuple(states) if cell == "lstm" else states[0]
    y, *last = masked_recurrence(cell, x.transpose(0, 1), None, state, given, len(given) > 2, 1, False)
    return y.transpose(0, 1), tuple(state.squeeze(0) for state in last)


def cell_step(cell: str, x: torch.Tensor, state: Any, *weights: torch.Tensor | None) -> Any:
    """Compute one step of a cell: x[N, F] with states [N, H]; (h, c) of an LSTM, and h of others.

    `weights` are those of `run_cell`.
    """
    w_ih, w_hh, b_ih, b_hh = (*weights, None, None)[:4]
    h = state[0] if cell == "lstm" else state
    own, carried = _aten.linear(x, w_ih, b_ih), _aten.linear(h, w_hh, b_hh)
    if cell == "lstm":
        i, f, g, o = (own + carried).chunk(4, 1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    if cell == "gru":
        (r, z, n), (r_h, z_h, n_h) = own.chunk(3, 1), carried.chunk(3, 1)
        new = torch.tanh(n + torch.sigmoid(r + r_h) * n_h)
        update = torch.sigmoid(z + z_h)
        return new + update * (h - new)
    return torch.tanh(own + carried) if cell == "rnn_tanh" else torch.relu(own + carried)


STEPS = {operator: partial(cell_step, cell) for operator, cell in CELLS.items()}
"""Cells in operators on rows, for those that no loop over timesteps calls."""
