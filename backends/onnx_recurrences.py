"""Recurrent operators as ONNX's LSTM, GRU and RNN, which take the lengths of the rows.

Used only while packaging: archives do not contain this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# The order of the gates in ONNX, by their places in torch: i f g o -> i o f g, r z n -> z r n.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}


def onnx_lstm(
    x: Any,
    lengths: Any,
    h_0: Any,
    c_0: Any,
    weights: Sequence[Any],
    bias: bool,
    layers: int,
    bidirectional: bool,
    need_cell: bool,
) -> tuple[Any, Any, Any]:
    """Translate the abstract operator; called by the exporter."""
    y, h_n, c_n = _layers("lstm", x, lengths, (h_0, c_0), weights, layers, bidirectional)
    return y, h_n, c_n


def onnx_rnn(
    x: Any, lengths: Any, h_0: Any, weights: Sequence[Any], cell: str, bias: bool, layers: int, bidirectional: bool
) -> tuple[Any, Any]:
    """Translate the abstract operator; called by the exporter."""
    y, h_n = _layers(cell, x, lengths, (h_0,), weights, layers, bidirectional)
    return y, h_n


def _layers(
    cell: str, x: Any, lengths: Any, states: Sequence[Any], weights: Sequence[Any], layers: int, bidirectional: bool
) -> list[Any]:
    """One ONNX operator for each layer.

    Returns y[B, T, D*H], then each state [L*D, B, H] after each row's last timestep.
    """
    op = _opset()
    directions = 2 if bidirectional else 1
    size = len(weights) // layers
    steps = None if lengths is None else op.Cast(lengths, to=6)  # int32
    x = op.Transpose(x, perm=[1, 0, 2])
    initial = [[state] if layers == 1 else op.Split(state, num_outputs=layers, axis=0) for state in states]
    finals = []
    for index in range(layers):
        parts = _in_onnx_order(cell, weights[index * size : (index + 1) * size], directions)
        rows = [state[index] for state in initial]
        y, *final = _recurrent_operator(cell, x, parts, steps, rows, bidirectional, int(states[0].shape[2]))
        # [T, D, B, H] -> [T, B, D*H]; nothing moves where there is one direction.
        x = op.Squeeze(y, [1]) if directions == 1 else op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])
        finals.append(final)
    joined = (kind[0] if layers == 1 else op.Concat(*kind, axis=0) for kind in zip(*finals, strict=True))
    return [op.Transpose(x, perm=[1, 0, 2]), *joined]


def _recurrent_operator(
    cell: str, x: Any, parts: Sequence[Any], steps: Any, states: Sequence[Any], bidirectional: bool, hidden: int
) -> Any:
    """ONNX's recurrent operator: (Y, Y_h) or (Y, Y_h, Y_c). It stops each row at its own last timestep."""
    op = _opset()
    common = {"hidden_size": hidden, "direction": "bidirectional" if bidirectional else "forward"}
    if cell == "lstm":
        return op.LSTM(x, *parts, steps, *states, **common)
    if cell == "gru":
        # torch applies the reset gate to the whole of W_hn h + b_hn.
        return op.GRU(x, *parts, steps, *states, linear_before_reset=1, **common)
    activation = {"rnn_tanh": "Tanh", "rnn_relu": "Relu"}[cell]
    return op.RNN(x, *parts, steps, *states, activations=[activation] * (2 if bidirectional else 1), **common)


def _in_onnx_order(cell: str, weights: Sequence[Any], directions: int) -> tuple[Any, Any, Any]:
    """W [D, G*H, F], R [D, G*H, H] and B [D, 2*G*H] (None without bias); computed once, at load."""
    op = _opset()
    each = len(weights) // directions
    groups = [[_gates(cell, weight) for weight in weights[d * each : (d + 1) * each]] for d in range(directions)]
    w, r = (op.Concat(*(op.Unsqueeze(group[i], [0]) for group in groups), axis=0) for i in (0, 1))
    if each == 2:
        return w, r, None
    biases = [op.Unsqueeze(op.Concat(group[2], group[3], axis=0), [0]) for group in groups]
    return w, r, op.Concat(*biases, axis=0)


def _opset() -> Any:
    """ONNX's operators; untyped, because the exporter passes its own values and plain numbers."""
    from onnxscript import opset18

    return opset18


def _gates(cell: str, weight: Any) -> Any:
    """The gates of a weight or bias, stacked along its first dimension, in ONNX's order."""
    op = _opset()
    order = _GATES[cell]
    hidden = int(weight.shape[0]) // len(order)
    parts = [op.Slice(weight, [gate * hidden], [(gate + 1) * hidden], [0]) for gate in order]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)
