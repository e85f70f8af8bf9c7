"""Operators of this engine, by their names in an exported program."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = Any


def sigmoid(x: Array) -> Array:
    """Compute torch.sigmoid by tanh, which does not overflow."""
    return (np.tanh(x / 2) + 1) / 2


def lstm(
    x: Array,
    lengths: Array | None,
    h_0: Array,
    c_0: Array,
    weights: Sequence[Array],
    bias: bool,
    layers: int,
    bidirectional: bool,
    need_cell: bool,
) -> tuple[Array, Array, Array]:
    """Compute the abstract operator: x[B, T, F] -> y[B, T, D*H], h_n[L*D, B, H], c_n[L*D, B, H].

    The states are those at each row's own end.
    """
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    real = np.arange(x.shape[1]) < (np.full(len(x), x.shape[1]) if lengths is None else lengths)[:, None]
    ends: list[tuple[Array, Array]] = []
    for _ in range(layers):
        outputs = []
        for direction in range(directions):
            row = len(ends)
            own = weights[row * each : (row + 1) * each]
            y, end = _direction(x, real, (h_0[row], c_0[row]), own, back=direction == 1)
            outputs.append(y)
            ends.append(end)
        x = np.concatenate(outputs, 2)
    h_n, c_n = (np.stack(states) for states in zip(*ends, strict=True))
    return x, h_n, c_n if need_cell else np.zeros_like(c_n)


def _direction(
    x: Array, real: Array, states: tuple[Array, Array], weights: Sequence[Array], back: bool
) -> tuple[Array, tuple[Array, Array]]:
    """Compute one layer in one direction; backwards, each row starts at its own last timestep."""
    w_ih, w_hh, *biases = weights
    h, c = states
    given = x @ w_ih.T + sum(biases)
    y = np.zeros((*x.shape[:2], h.shape[1]), x.dtype)
    for step in reversed(range(x.shape[1])) if back else range(x.shape[1]):
        i, f, g, o = np.split(given[:, step] + h @ w_hh.T, 4, axis=1)
        active = real[:, step, None]
        c = np.where(active, sigmoid(f) * c + sigmoid(i) * np.tanh(g), c)
        h = np.where(active, sigmoid(o) * np.tanh(c), h)
        y[:, step] = np.where(active, h, 0)
    return y, (h, c)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Compute a linear layer: x[..., F] -> [..., G]."""
    return x @ weight.T + (0 if bias is None else bias)


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "aten.add.Tensor": operator.add,
    "aten.clone.default": lambda x, **_: x,
    "aten.contiguous.default": lambda x, **_: x,
    "aten.embedding.default": lambda weight, ids, *_: weight[ids],
    "aten.expand.default": lambda x, sizes: x + np.zeros(np.maximum(sizes, 1), x.dtype),
    "aten.linear.default": linear,
    "aten.mul.Tensor": operator.mul,
    "aten.permute.default": np.transpose,
    "aten.relu.default": lambda x: np.maximum(x, 0),
    "aten.select.int": lambda x, axis, index: np.take(x, index, axis),
    "aten.sigmoid.default": sigmoid,
    "aten.squeeze.dim": np.squeeze,
    "aten.sym_size.int": lambda x, axis: x.shape[axis],
    "aten.tanh.default": np.tanh,
    "aten.to.dtype": lambda x, dtype, *_: x.astype(dtype),
    "aten.unsqueeze.default": np.expand_dims,
    "aten.zeros.default": lambda sizes, dtype, **_: np.zeros(sizes, dtype),
    "getitem": operator.getitem,
    "neuron_lstm.lstm.default": lstm,
}
