"""Semantics of the abstract recurrent operators, which lowering puts in place of PackedSequence code.

`x` is [B, T, F] and right-padded; `lengths` int64[B] counts real timesteps (None: all T of every row). The results are
exactly those of the same rows packed: `y` [B, T, D*H] holds zeros on padding, `h_n` and `c_n` [L*D, B, H] are the
states after each row's own last step. The padding of `x` has no influence. `weights` is the flat list of
`nn.LSTM`/`nn.GRU`/`nn.RNN` (`_flat_weights`); D is 2 when bidirectional. With `proj_size`, H is that of the projection
in `y`, `h_0` and `h_n`. `c_n` holds zeros where `need_cell` is false. All results are contiguous.

An engine supports the operators as they are, or passes its own fused layer to `masked_layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .interface import Tensors

Layer = Callable[[Tensor, Tensors, Tensors], tuple[Tensor, Tensors]]
"""A fused layer in one direction: x[T, B, F], states, weights -> y[T, B, H], states after step T.

Each state is [B, H].
"""

Widen = Callable[[Tensors], Tensors]
"""A function such as `gate_mask_weights`, which may return its results from memory."""


def masked_lstm(
    layer: Layer,
    x: Tensor,
    lengths: Tensor | None,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensors,
    bias: bool,
    layers: int,
    bidirectional: bool,
    need_cell: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the `lstm` operator by a fused layer, with projections if the layer has them."""
    hold = gate_mask_weights if need_cell else None
    y, (h_n, c_n) = masked_layers(layer, x, lengths, (h_0, c_0), weights, layers, bidirectional, hold)
    return y, h_n, c_n if need_cell else torch.zeros_like(c_n)


def fused_lstm(
    layer: Layer, x: Tensor, lengths: Tensor | None, h_0: Tensor, c_0: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the `lstm` operator, with or without projections, by a fused layer that has none.

    `options` are the operator's further arguments.
    """
    plain = partial(masked_lstm, layer)
    compute = partial(without_projection, plain) if is_projected(h_0, c_0) else plain
    return compute(x, lengths, h_0, c_0, *options)


def is_projected(h_0: Tensor, c_0: Tensor) -> bool:
    """Whether the LSTM that these states belong to has a `proj_size`."""
    return h_0.shape[2] != c_0.shape[2]


def without_projection(
    plain: Callable[..., tuple[Tensor, Tensor, Tensor]],
    x: Tensor,
    lengths: Tensor | None,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensors,
    bias: bool,
    layers: int,
    bidirectional: bool,
    need_cell: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a projected LSTM by `plain`, the `lstm` operator of an engine without projections.

    With m the state before projection, h = W_hr m, so the recurrent weights are W_hh W_hr. A given h_0 need not be the
    image of any m: it enters as further input columns, at each direction's first step only and with the weights W_hh.
    """
    directions = 2 if bidirectional else 1
    groups = _per_direction(weights, layers, directions)
    finals: list[tuple[Tensor, Tensor]] = []
    for index in range(layers):
        rows = slice(index * directions, (index + 1) * directions)
        folded = [tensor for d in range(directions) for tensor in _folded(groups[rows], d)]
        widened = torch.cat([x, *_first_step_columns(x, lengths, h_0[rows])], 2)
        m, m_n, c_n = plain(
            widened, lengths, torch.zeros_like(c_0[rows]), c_0[rows], folded, bias, 1, bidirectional, need_cell
        )
        projections = [group[-1] for group in groups[rows]]
        parts = zip(m.chunk(directions, 2), projections)
        x = torch.cat([torch.nn.functional.linear(part, w_hr) for part, w_hr in parts], 2)
        h_n = torch.stack([torch.nn.functional.linear(m_n[d], w_hr) for d, w_hr in enumerate(projections)])
        finals.append((h_n, c_n))
    return x.contiguous(), torch.cat([h for h, _ in finals]), torch.cat([c for _, c in finals])


def _folded(groups: Sequence[Tensors], direction: int) -> list[Tensor]:
    """One direction's weights with the projection folded in.

    They have one block of input columns for each direction's h_0.
    """
    w_ih, w_hh, *biases, w_hr = groups[direction]
    blocks = [w_hh if d == direction else torch.zeros_like(w_hh) for d in range(len(groups))]
    return [torch.cat([w_ih, *blocks], 1), w_hh @ w_hr, *biases]


def _first_step_columns(x: Tensor, lengths: Tensor | None, h_0: Tensor) -> list[Tensor]:
    """For each direction [B, T, P]: h_0 at its first step, zeros elsewhere."""
    steps = torch.arange(x.shape[1], device=x.device)
    last = (x.shape[1] if lengths is None else lengths[:, None]) - 1
    first = [(steps == 0)[None, :], (steps == last).expand(x.shape[0], x.shape[1])]
    return [torch.where(first[d][:, :, None], h_0[d][:, None, :], 0.0) for d in range(h_0.shape[0])]


def masked_layers(
    layer: Layer,
    x: Tensor,
    lengths: Tensor | None,
    states: Tensors,
    weights: Tensors,
    layers: int,
    bidirectional: bool,
    hold: Widen | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Compute y and the final states by a fused layer; differentiable and traceable if the layer is.

    `hold` is `gate_mask_weights`, or returns its results from memory, where padding must keep the cell state.
    """
    directions = 2 if bidirectional else 1
    groups = _per_direction(weights, layers, directions)
    rows = _Rows(x, lengths)
    x = rows.clean(x.transpose(0, 1))  # time first, as fused layers need it
    finals: list[Tensors] = []
    for index in range(layers):
        outputs = []
        for d in range(directions):
            row = index * directions + d
            y, final = _direction(layer, x, rows, [s[row] for s in states], groups[row], bool(d), hold)
            outputs.append(y)
            finals.append(final)
        x = rows.clean(torch.cat(outputs, 2) if bidirectional else outputs[0])
    return x.transpose(0, 1).contiguous(), [torch.stack(list(kind)) for kind in zip(*finals)]


def _direction(
    layer: Layer, x: Tensor, rows: _Rows, states: Tensors, weights: Tensors, reverse: bool, hold: Widen | None
) -> tuple[Tensor, Tensors]:
    """One layer in one direction over ragged rows.

    Returns y[T, B, H] in time order, and the states after each row's last step.
    """
    if reverse:
        x = rows.clean(rows.reversed(x))
    if hold is not None and rows.lengths is not None:
        x, weights = torch.cat([x, rows.padding.to(x.dtype)], 2), hold(weights)
    y, final = layer(x, states, weights)
    if rows.lengths is not None:
        final = [rows.last(y), *final[1:]]
    return (rows.reversed(y) if reverse else y), final


class _Rows:
    """Positions of the real timesteps of a batch x[B, T, F]. Its methods take time-major [T, B, ...] tensors."""

    def __init__(self, x: Tensor, lengths: Tensor | None) -> None:
        self.lengths = lengths
        if lengths is None:
            return
        steps = torch.arange(x.shape[1], device=x.device)[:, None]
        self.padding = (steps >= lengths[None, :])[:, :, None]
        self._mirror = (lengths[None, :] - 1 - steps).clamp(min=0)[:, :, None]
        self._last = (lengths - 1)[None, :, None]

    def clean(self, x: Tensor) -> Tensor:
        """Set padding to zero. Selected, not multiplied: 0 x inf and 0 x NaN are NaN."""
        return x if self.lengths is None else torch.where(self.padding, 0.0, x)

    def reversed(self, x: Tensor) -> Tensor:
        """Reverse each row within its own length, so that it still starts at step 0 with the given state."""
        return x.flip(0) if self.lengths is None else x.gather(0, self._mirror.expand(x.shape))

    def last(self, y: Tensor) -> Tensor:
        """Select each row of y[T, B, H] at its last real step: [B, H]."""
        return y.gather(0, self._last.expand(1, y.shape[1], y.shape[2]))[0]


def gate_mask_weights(weights: Tensors) -> list[Tensor]:
    """Return the weights of an LSTM layer with one more input column.

    The column closes the input gate and opens the forget gate. Where it is 1 in x, on padding, the cell state is kept
    exactly, in any fused LSTM layer. Its weights are beyond all sums, and finite, so that 0 times them is 0. The order
    of the gates is i, f, g, o.
    """
    w_ih, *others = weights
    hidden, beyond = w_ih.shape[0] // 4, torch.finfo(w_ih.dtype).max / 2
    closed, opened = w_ih.new_full((hidden, 1), -beyond), w_ih.new_full((hidden, 1), beyond)
    column = torch.cat([closed, opened, w_ih.new_zeros(2 * hidden, 1)])
    return [torch.cat([w_ih, column], 1), *others]


def _per_direction(weights: Tensors, layers: int, directions: int) -> list[Tensors]:
    """The flat list of weights in groups, one for each layer and direction."""
    size = len(weights) // (layers * directions)
    return [weights[i : i + size] for i in range(0, len(weights), size)]


def aten_layer(cell: str) -> Layer:
    """Return one layer of torch's own LSTM, with projection, or of its GRU or RNN."""
    operator = getattr(torch.ops.aten, cell).input

    def layer(x: Tensor, states: Tensors, weights: Tensors) -> tuple[Tensor, Tensors]:
        given = [state[None] for state in states]
        hx = given if cell == "lstm" else given[0]
        y, *finals = operator(x, hx, list(weights), len(weights) >= 4, 1, 0.0, False, False, False)
        return y, [final[0] for final in finals]

    return layer


lstm = partial(masked_lstm, aten_layer("lstm"))
"""The `lstm` operator by torch's own layers."""


def rnn(
    x: Tensor,
    lengths: Tensor | None,
    h_0: Tensor,
    weights: Tensors,
    cell: str,
    bias: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the `rnn` operator by torch's own layers; `cell` is gru, rnn_tanh or rnn_relu."""
    y, (h_n,) = masked_layers(aten_layer(cell), x, lengths, (h_0,), weights, layers, bidirectional)
    return y, h_n
