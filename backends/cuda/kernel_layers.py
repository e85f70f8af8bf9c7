"""Stacks of recurrent layers by a kernel that ends each row at its own length, and weights derived once.

The kernel multiplies the hidden states. The inputs of all timesteps are multiplied before it in one matrix product,
also those of padding, which the kernel does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from ...bucketing.padding import storage_ptr
from .kernels.interface import GATES, LayerCall, RecurrenceKernel


def run_layers(
    kernel: RecurrenceKernel,
    derived: DerivedWeights,
    precision: torch.dtype,
    cell: str,
    x: Tensor,
    lengths: Tensor | None,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    layers: int,
    directions: int,
) -> tuple[Tensor, list[Tensor]]:
    """Compute a recurrent operator without a projection: y[B, T, D * H], final states [L * D, B, H].

    `masked.py` says what the operators compute. Products of inputs, and all weights, have `precision`; sums and states
    are float32.
    """
    size = len(weights) // layers
    batch, time, _ = x.shape
    ends = None if lengths is None else lengths.contiguous()
    finals: list[Sequence[Tensor]] = []
    for index in range(layers):
        w_ih, w_hh, bias, *b_hn = derived.derive(
            f"kernel {cell} {directions} {precision}",
            weights[index * size : (index + 1) * size],
            partial(_operands, cell, directions, precision),
        )
        given = [state[index * directions : (index + 1) * directions].contiguous() for state in states]
        rows = x.reshape(batch * time, x.shape[2]).to(w_ih.dtype)
        gates = torch.addmm(bias, rows, w_ih.t()).to(x.dtype).view(batch, time, directions, -1)
        x = x.new_zeros(batch, time, directions * w_hh.shape[2])
        final = [state.clone() for state in given]
        h_0, c_0, h_n, c_n = (*given, *final) if len(given) == 2 else (given[0], None, final[0], None)
        kernel.enqueue(LayerCall(cell, gates, w_hh, b_hn[0] if b_hn else None, ends, h_0, c_0, x, h_n, c_n))
        finals.append(final)
    return x, [torch.cat(list(kind)) for kind in zip(*finals)]


def _operands(cell: str, directions: int, precision: torch.dtype, weights: Sequence[Tensor]) -> list[Tensor]:
    """A layer's weights as the kernel's call needs them.

    w_ih[D * G * H, F] and bias[D * G * H] in `precision`, w_hh[D, G * H, H] in float32, and of a GRU b_hn[D, H].
    """
    size = len(weights) // directions
    groups = [[tensor.to(precision) for tensor in weights[d * size : (d + 1) * size]] for d in range(directions)]
    hidden = weights[1].shape[1]
    biases = [group[2:] or [group[0].new_zeros(GATES[cell] * hidden)] * 2 for group in groups]
    if cell != "gru":
        split: list[Sequence[Tensor]] = [[b_ih + b_hh] for b_ih, b_hh in biases]
    else:
        # The reset gate multiplies the recurrent part of the candidate, with its bias.
        split = [
            [b_ih + torch.cat([b_hh[: 2 * hidden], b_hh.new_zeros(hidden)]), b_hh[2 * hidden :]]
            for b_ih, b_hh in biases
        ]
    w_ih = torch.cat([group[0] for group in groups])
    w_hh = torch.stack([group[1] for group in groups]).float()
    bias, *b_hn = zip(*split)
    return [w_ih, w_hh, torch.cat(list(bias)), *(torch.stack(list(kind)).float() for kind in b_hn)]


class DerivedWeights:
    """Results of functions of weights, by the weights' addresses.

    Weights that a program computes itself are not kept: their memory is used again for something else.
    """

    def __init__(self, own: Iterable[torch.Tensor]) -> None:
        """`own` are the model's weights on the device, which live as long as this object."""
        self._own = tuple(own)
        self._storages = {storage_ptr(weight) for weight in self._own}
        self._known: dict[Hashable, Sequence[torch.Tensor]] = {}

    def derive(
        self, kind: str, weights: Sequence[Tensor], make: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    ) -> Sequence[Tensor]:
        """Return `make(weights)`, from memory if it is of this kind and was made of the same weights before."""
        if any(storage_ptr(weight) not in self._storages for weight in weights):
            return make(weights)
        key = (kind, tuple([(weight.data_ptr(), weight.shape, weight.stride()) for weight in weights]))
        if key not in self._known:
            self._known[key] = made = make(weights)
            self._storages.update(storage_ptr(weight) for weight in made)
        return self._known[key]
