"""Standard cells in a loop, computed as one recurrent layer over all timesteps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..packed_sequence import masked_recurrence

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
