"""Torch's weights in the order in which the kernel reads them.

For a block of as many hidden units as a register holds: for each input, the weights of one gate after those of the
other. Units that fill up the last block have zeros. A GRU's new state needs the product with the state by itself, so
its sums are four: r, z, that of the inputs, that of the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def pack(cell: str, weights: Sequence[torch.Tensor], lanes: int, at_once: int) -> tuple[torch.Tensor, ...]:
    """W_ih, W_hh and the sums' first values from one layer's `w_ih, w_hh[, b_ih, b_hh]`.

    `lanes` is the number of units of a block, and `at_once` that of the gates whose weights lie side by side.

    >>> w_ih, w_hh = torch.arange(6.0).view(3, 2), torch.zeros(3, 3)
    >>> pack("rnn_tanh", [w_ih, w_hh], lanes=2, at_once=1)[0]
    tensor([[0., 2., 1., 3.],
            [4., 0., 5., 0.]])
    """
    w_ih, w_hh, *biases = weights
    b_ih, b_hh = biases or [w_ih.new_zeros(w_ih.shape[0])] * 2
    from_input, from_state = (_blocks(weight, _GATES[cell], lanes, at_once) for weight in (w_ih, w_hh))
    return from_input, from_state, _units(_sums(cell, b_ih, b_hh), lanes)


def pack_product(weight: torch.Tensor, bias: torch.Tensor | None, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A linear layer's `weight[O, K]` and `bias[O]` for blocks of so many outputs: for each input, their weights."""
    begins = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return _blocks(weight, 1, block, 1), _units(begins[None], block)


def _sums(cell: str, b_ih: torch.Tensor, b_hh: torch.Tensor) -> torch.Tensor:
    """What each sum of each unit begins with: [S, H]."""
    own, of_state = (bias.view(_GATES[cell], -1) for bias in (b_ih, b_hh))
    if cell == "gru":
        return torch.cat([own[:2] + of_state[:2], own[2:], of_state[2:]])
    return own + of_state


def _blocks(weight: torch.Tensor, gates: int, lanes: int, at_once: int) -> torch.Tensor:
    """[G*H, K] -> [blocks, G*K*lanes], gates in groups of `at_once`: each group, input, gate, unit."""
    inputs = weight.shape[1]
    padded = _filled_up(weight.view(gates, -1, inputs), lanes).view(gates, -1, lanes, inputs)
    groups = [padded[first : first + at_once].permute(1, 3, 0, 2).flatten(1) for first in range(0, gates, at_once)]
    return torch.cat(groups, 1).contiguous()


def _units(values: torch.Tensor, lanes: int) -> torch.Tensor:
    """[S, H] -> [blocks, S, lanes]."""
    return _filled_up(values, lanes).view(len(values), -1, lanes).transpose(0, 1).contiguous()


def _filled_up(values: torch.Tensor, lanes: int) -> torch.Tensor:
    """With zeros along the units, dimension 1, up to whole blocks."""
    missing = -values.shape[1] % lanes
    return torch.cat([values, values.new_zeros(values.shape[0], missing, *values.shape[2:])], 1)
