"""Abstract operators that exported programs call: their registration with torch, and their calls.

`masked.py` has the semantics of the recurrent ones, `row_orders.py` those of `positions`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import masked, row_orders

_library = torch.library.Library("neuron_lstm", "DEF")
_library.define(
    "lstm(Tensor x, Tensor? lengths, Tensor h_0, Tensor c_0, Tensor[] weights, bool bias, int layers, "
    "bool bidirectional, bool need_cell) -> (Tensor y, Tensor h_n, Tensor c_n)"
)
_library.define(
    "rnn(Tensor x, Tensor? lengths, Tensor h_0, Tensor[] weights, str cell, bool bias, int layers, "
    "bool bidirectional) -> (Tensor y, Tensor h_n)"
)  # cell: gru, rnn_tanh or rnn_relu
_library.define(
    "positions(Tensor x, Tensor lengths, Tensor numbers, SymInt size, int dim, str choice, bool largest) -> Tensor"
)


def _positions_shape(x: Tensor, lengths: object, numbers: object, size: int, dim: int, *options: object) -> Tensor:
    return x.new_empty([*x.shape[:dim], size, *x.shape[dim + 1 :]], dtype=torch.int64)


def _lstm_shapes(x: Tensor, lengths: object, h_0: Tensor, c_0: Tensor, *options: object) -> tuple[Tensor, ...]:
    *_, bidirectional, _need_cell = options
    return *_rnn_shapes(x, lengths, h_0, bidirectional), c_0.new_empty(c_0.shape)


def _rnn_shapes(x: Tensor, lengths: object, h_0: Tensor, *options: object) -> tuple[Tensor, ...]:
    directions = 2 if options[-1] else 1
    return x.new_empty(x.shape[0], x.shape[1], h_0.shape[2] * directions), h_0.new_empty(h_0.shape)


torch.library.register_fake("neuron_lstm::lstm", _lstm_shapes, lib=_library)
torch.library.register_fake("neuron_lstm::rnn", _rnn_shapes, lib=_library)
torch.library.register_fake("neuron_lstm::positions", _positions_shape, lib=_library)
torch.library.impl(_library, "positions", "CompositeExplicitAutograd")(row_orders.positions)
torch.library.impl(_library, "lstm", "CompositeExplicitAutograd")(masked.lstm)
torch.library.impl(_library, "rnn", "CompositeExplicitAutograd")(masked.rnn)


def is_custom(target: object) -> bool:
    """Whether the target of a graph's node is an operator of this file."""
    return is_recurrent(target) or is_positions(target)


def is_positions(target: object) -> bool:
    """Whether the target of a graph's node is the operator that sorts and chooses in each row alone.

    >>> is_positions("neuron_lstm.positions.default")
    True
    """
    return str(target) == "neuron_lstm.positions.default"


def is_recurrent(target: object) -> bool:
    """Whether the target of a graph's node is one of these operators: LSTM, GRU or plain RNN.

    >>> is_recurrent("neuron_lstm.lstm.default"), is_recurrent("neuron_lstm.last_timestep.default")
    (True, False)
    """
    return str(target) in ("neuron_lstm.lstm.default", "neuron_lstm.rnn.default")
