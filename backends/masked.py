"""The abstract recurrent operators that lowering puts in place of PackedSequence code.

`x` is [B, T, F] and right-padded; `lengths` int64[B] counts real timesteps (None: all T of every row). The answers
are exactly those of the same rows packed: `y` [B, T, D*H] holds zeros on padding, `h_n` and `c_n` [L*D, B, H] are the
states after each row's own last step. Whatever stands in the padding of `x` has no influence. `weights` is the flat
list of `nn.LSTM`/`nn.GRU`/`nn.RNN` (`_flat_weights`); D is 2 when bidirectional. All results are contiguous.
"""

from __future__ import annotations

import torch

_library = torch.library.Library("neuron_lstm", "DEF")
_library.define(
    "lstm(Tensor x, Tensor? lengths, Tensor h_0, Tensor c_0, Tensor[] weights, bool bias, int layers, "
    "bool bidirectional, bool need_cell) -> (Tensor y, Tensor h_n, Tensor c_n)"
)
_library.define(
    "rnn(Tensor x, Tensor? lengths, Tensor h_0, Tensor[] weights, str cell, bool bias, int layers, "
    "bool bidirectional) -> (Tensor y, Tensor h_n)"
)  # cell: gru, rnn_tanh or rnn_relu


@torch.library.register_fake("neuron_lstm::lstm", lib=_library)
def _lstm_shapes(x, lengths, h_0, c_0, weights, bias, layers, bidirectional, need_cell):  # type: ignore[no-untyped-def]
    directions = 2 if bidirectional else 1
    y = x.new_empty(x.shape[0], x.shape[1], h_0.shape[2] * directions)
    return y, h_0.new_empty(h_0.shape), c_0.new_empty(c_0.shape)


@torch.library.register_fake("neuron_lstm::rnn", lib=_library)
def _rnn_shapes(x, lengths, h_0, weights, cell, bias, layers, bidirectional):  # type: ignore[no-untyped-def]
    directions = 2 if bidirectional else 1
    return x.new_empty(x.shape[0], x.shape[1], h_0.shape[2] * directions), h_0.new_empty(h_0.shape)
