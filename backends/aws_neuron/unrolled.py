"""Abstract recurrent operators of `masked.py` as loops over time of basic operators.

A compiler that traces them sees linear, select, stack, sigmoid, tanh, relu, add, mul and where, step by step: no fused
layer, no gather, no custom operator. A padded step leaves a row's state unchanged, so the reverse direction needs no
reordering: it starts for each row at that row's own last step.

This file also runs in the interpreter of a compiler, which has neither this package nor its release of torch. So it
imports only torch (1.13 or later), and works with Python 3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear


def lstm(
    x: Tensor,
    lengths: Tensor | None,
    h_0: Tensor,
    c_0: Tensor,
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    bidirectional: bool,
    need_cell: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `neuron_lstm::lstm`: y[B, T, D*H], h_n and c_n [L*D, B, H]."""
    y, (h_n, c_n) = _layers("lstm", x, lengths, (h_0, c_0), weights, bias, layers, bidirectional)
    return y, h_n, c_n if need_cell else torch.zeros_like(c_n)


def rnn(
    x: Tensor,
    lengths: Tensor | None,
    h_0: Tensor,
    weights: Sequence[Tensor],
    cell: str,
    bias: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensor]:
    """Compute `neuron_lstm::rnn`: y[B, T, D*H], h_n [L*D, B, H]. `cell` is gru, rnn_tanh or rnn_relu."""
    y, (h_n,) = _layers(cell, x, lengths, (h_0,), weights, bias, layers, bidirectional)
    return y, h_n


def _layers(
    cell: str,
    x: Tensor,
    lengths: Tensor | None,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, list[Tensor]]:
    directions = 2 if bidirectional else 1
    size = len(weights) // (layers * directions)
    active: Sequence[Tensor | None] = [None] * x.shape[1]
    if lengths is not None:
        rows = [(lengths > step).unsqueeze(1) for step in range(x.shape[1])]
        # Selected, not multiplied: values of padding must not affect a gate, and 0 x NaN is NaN.
        x = torch.where(torch.stack(rows, 1), x, torch.zeros_like(x))
        active = rows
    finals: list[Sequence[Tensor]] = []
    for layer in range(layers):
        outputs = []
        for d in range(directions):
            row = layer * directions + d
            own = weights[row * size : (row + 1) * size]
            y, final = _direction(cell, x, active, [state[row] for state in states], own, bias, d == 1)
            outputs.append(y)
            finals.append(final)
        x = torch.cat(outputs, 2) if bidirectional else outputs[0]
    return x, [torch.stack([final[kind] for final in finals]) for kind in range(len(states))]


def _direction(
    cell: str,
    x: Tensor,
    active: Sequence[Tensor | None],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    reverse: bool,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Compute one layer in one direction: y[B, T, H] with zeros at padding, and each row's final states.

    `active` has a mask [B, 1] for each step: the rows that are not yet padding; None: all of them.
    """
    w_ih, w_hh = weights[0], weights[1]
    b_ih, b_hh = (weights[2], weights[3]) if bias else (None, None)
    w_hr = weights[-1] if len(weights) in (3, 5) else None
    gates = linear(x, w_ih, b_ih)  # all steps at once: the loop computes only what depends on the state
    step = _step(cell, w_hh, b_hh, w_hr)
    outputs: list[Tensor] = [x] * len(active)
    for t in reversed(range(len(active))) if reverse else range(len(active)):
        after = step(gates.select(1, t), states)
        outputs[t] = after[0]
        mask = active[t]
        if mask is not None:
            outputs[t] = torch.where(mask, after[0], torch.zeros_like(after[0]))
            after = tuple(torch.where(mask, new, old) for new, old in zip(after, states))
        states = after
    return torch.stack(outputs, 1), states


def _step(
    cell: str, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None
) -> Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, ...]]:
    """Return a function of the gates' input part [B, G*H] and the states to the new states, h first."""
    if cell == "lstm":
        return lambda x, states: _lstm_step(linear(states[0], w_hh, b_hh) + x, states[1], w_hr)
    if cell == "gru":
        return lambda x, states: _gru_step(x, linear(states[0], w_hh, b_hh), states[0])
    activation = {"rnn_tanh": torch.tanh, "rnn_relu": torch.relu}[cell]
    return lambda x, states: (activation(linear(states[0], w_hh, b_hh) + x),)


def _lstm_step(gates: Tensor, c: Tensor, w_hr: Tensor | None) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h if w_hr is None else linear(h, w_hr)), c


def _gru_step(x: Tensor, h_gates: Tensor, h: Tensor) -> tuple[Tensor]:
    x_r, x_z, x_n = x.chunk(3, 1)
    h_r, h_z, h_n = h_gates.chunk(3, 1)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
    return ((1.0 - z) * n + z * h,)
