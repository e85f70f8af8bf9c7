"""Layers that replace operators of a program by calls of the recurrent library.

The functions at the end make them; sources of programs call these by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Optional

import torch

from .library import LayerStack, LinearLayer, ThreadPool

Layer = Callable[..., torch.Tensor]
"""A layer of one output, as a function of its inputs."""

MOST_TABLE_BYTES = 64 * 2**20
"""Memory of an embedding's rows that are multiplied ahead: 16,000 ids for 256 hidden units of an LSTM."""


def recurrence(
    pool: ThreadPool,
    cell: str,
    weights: Sequence[torch.Tensor],
    layers: int,
    directions: int,
    time_major: bool,
    outputs: bool = True,
    table: Optional[torch.Tensor] = None,
) -> Callable[..., tuple[Optional[torch.Tensor], ...]]:
    """Make a recurrent operator of `masked.py` with its weights: a function of x, lengths and states, None for zeros.

    It returns (y, h_n, c_n), or (y, h_n) for cells without a cell state. `outputs`: y is read, else it is None.
    `table[N, F]`: the layers begin with this embedding, and x are ids of its rows.
    """
    stack = LayerStack(pool, cell, weights, layers, directions)
    is_lstm = cell == "lstm"
    rows = None if table is None else table.contiguous()
    if rows is not None:
        stack.multiply_table(rows, MOST_TABLE_BYTES)

    def prepared(x: torch.Tensor) -> torch.Tensor:
        if rows is not None:
            return x if x.dtype is torch.int64 else x.to(torch.int64)
        return x if x.stride(2) == 1 else x.contiguous()

    def run(
        x: torch.Tensor, lengths: torch.Tensor | None, *states: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if lengths is None:
            lengths = torch.full((x.shape[0],), x.shape[1])
        h_0, *others = [None if state is None else state.contiguous() for state in states]
        c_0 = others[0] if is_lstm else None
        found = stack.run(prepared(x), lengths, h_0, c_0, table=rows, outputs=outputs, time_major=time_major)
        return found if is_lstm else found[:2]

    return run


def linear(pool: ThreadPool, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> Layer:
    """Make `aten.linear` of a float32 x of any rank."""
    product = LinearLayer(pool, weight, bias)

    def run(x: torch.Tensor) -> torch.Tensor:
        return product.run(x.reshape(-1, 1, x.shape[-1]).contiguous(), None).view(*x.shape[:-1], -1)

    return run


def sequence_linear(pool: ThreadPool, weight: torch.Tensor, bias: Optional[torch.Tensor], time_major: bool) -> Layer:
    """Make `aten.linear` of a recurrence's outputs at every timestep, [B, T, K], or with B and T exchanged.

    After a row's last timestep these outputs are zeros, for which a linear layer returns its bias.
    """
    product = LinearLayer(pool, weight, bias)
    if not time_major:
        return product.run
    return lambda x, lengths: product.run(x.transpose(0, 1), lengths, time_major=True).transpose(0, 1)


def convolution(
    pool: ThreadPool, weight: torch.Tensor, bias: Optional[torch.Tensor], stride: int, padding: int
) -> Layer:
    """Make `aten.conv1d` of a float32 x[N, C, T], without groups and dilation.

    In memory, channels come last: so a window of timesteps is one vector of x, and windows overlap. The weights
    [O, K*C] over a window are those of the convolution, [O, C, K].
    """
    kernel = weight.shape[2]
    product = LinearLayer(pool, weight.transpose(1, 2).flatten(1).contiguous(), bias)

    def run(x: torch.Tensor) -> torch.Tensor:
        batch, channels, time = x.shape
        padded = x.new_zeros(batch, time + 2 * padding, channels)
        padded[:, padding : padding + time] = x.transpose(1, 2)
        steps = (padded.shape[1] - kernel) // stride + 1
        windows = padded.as_strided((batch, steps, kernel * channels), (padded.stride(0), stride * channels, 1))
        return product.run(windows, None).transpose(1, 2)

    return run


def layer_functions(pool: ThreadPool) -> Mapping[str, Callable[..., Any]]:
    """Return the functions above by their names, for layers that are computed by these threads."""
    return {make.__name__: partial(make, pool) for make in (convolution, linear, recurrence, sequence_linear)}
