"""Recurrent operators on a device: exact for ragged rows, without a wait for a value.

A kernel of this project computes them where there is one for their size. Elsewhere the device's own layers do, by the
method of `masked.py`: they run over the padded rows in one direction, the other direction is a flip within each length,
and last states are read at each row's own end.

The kernel multiplies the hidden states, and ends each row at its own length. The inputs of all timesteps are multiplied
before it in one matrix product, also those of padding, which the kernel does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...bucketing.padding import storage_ptr
from .. import masked
from ..interface import Tensors
from .kernels.interface import GATES, LayerCall, RecurrenceKernel

Flatten = Callable[[str, Tensors], Tensors]


@dataclass(frozen=True)
class DeviceRecurrences:
    """The operators of `masked.py`, by the project's kernel or by the device's own layers."""

    derived: DerivedWeights
    flatten: Flatten
    """A function that lays a layer's weights out for the device's own layers."""
    kernel: RecurrenceKernel | None
    precision: torch.dtype
    """The one in which recurrences of float32 are computed."""

    def lstm(self, x: Tensor, lengths: Tensor | None, h_0: Tensor, c_0: Tensor, *options: Any) -> tuple[Tensor, ...]:
        """Compute the `lstm` operator; `options` are its further arguments."""
        weights, _bias, layers, bidirectional, need_cell = options
        hold = self._with_gate_mask if need_cell else None
        y, (h_n, c_n) = self._layers("lstm", x, lengths, [h_0, c_0], weights, layers, bidirectional, hold)
        return y, h_n, c_n if need_cell else torch.zeros_like(c_n)

    def rnn(self, x: Tensor, lengths: Tensor | None, h_0: Tensor, *options: Any) -> tuple[Tensor, ...]:
        """Compute the `rnn` operator; `options` are its further arguments."""
        weights, cell, _bias, layers, bidirectional = options
        y, (h_n,) = self._layers(cell, x, lengths, [h_0], weights, layers, bidirectional, None)
        return y, h_n

    def _layers(
        self,
        cell: str,
        x: Tensor,
        lengths: Tensor | None,
        states: Tensors,
        weights: Tensors,
        layers: int,
        bidirectional: bool,
        hold: masked.Widen | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute in the precision, and return results of the dtype of x."""
        kernel, directions = self._kernel_for(x, states, weights), 2 if bidirectional else 1
        if kernel is not None:
            return self._by_kernel(kernel, cell, x, lengths, states, weights, layers, directions)
        layer = masked.aten_layer(cell)

        def on_flat_weights(x: Tensor, states: Tensors, weights: Tensors) -> tuple[Tensor, Tensors]:
            flat = self.derived.derive(cell, weights, lambda own: self.flatten(cell, own))
            return layer(x, [state.contiguous() for state in states], flat)  # cuDNN refuses other states

        used = self.derived.derive(str(self.precision), weights, self._reduced)
        first, *initial = self._reduced([x, *states])
        y, finals = masked.masked_layers(on_flat_weights, first, lengths, initial, used, layers, bidirectional, hold)
        return y.to(x.dtype), [final.to(x.dtype) for final in finals]

    def _by_kernel(
        self,
        kernel: RecurrenceKernel,
        cell: str,
        x: Tensor,
        lengths: Tensor | None,
        states: Tensors,
        weights: Tensors,
        layers: int,
        directions: int,
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute a recurrent operator without a projection: y[B, T, D * H], final states [L * D, B, H].

        Products of inputs, and all weights, have `precision`; sums and states are float32.
        """
        size = len(weights) // layers
        batch, time, _ = x.shape
        ends = None if lengths is None else lengths.contiguous()
        finals: list[Tensors] = []
        for index in range(layers):
            w_ih, w_hh, bias, *b_hn = self.derived.derive(
                f"kernel {cell} {directions} {self.precision}",
                weights[index * size : (index + 1) * size],
                partial(_operands, cell, directions, self.precision),
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

    def _kernel_for(self, x: Tensor, states: Tensors, weights: Tensors) -> RecurrenceKernel | None:
        """The project's kernel, if it computes layers of this size and dtype; it has no projections."""
        has_projection = len({state.shape for state in states}) > 1
        if self.kernel is None or has_projection or {x.dtype, weights[0].dtype} != {torch.float32}:
            return None
        return self.kernel if self.kernel.computes(weights[1].shape[1]) else None

    def _reduced(self, tensors: Tensors) -> list[Tensor]:
        return [tensor.to(self.precision) if tensor.dtype == torch.float32 else tensor for tensor in tensors]

    def _with_gate_mask(self, weights: Tensors) -> Tensors:
        return self.derived.derive("gate mask", weights, masked.gate_mask_weights)


def _operands(cell: str, directions: int, precision: torch.dtype, weights: Tensors) -> list[Tensor]:
    """A layer's weights as the kernel's call needs them.

    w_ih[D * G * H, F] and bias[D * G * H] in `precision`, w_hh[D, G * H, H] in float32, and of a GRU b_hn[D, H].
    """
    size = len(weights) // directions
    groups = [[tensor.to(precision) for tensor in weights[d * size : (d + 1) * size]] for d in range(directions)]
    hidden = weights[1].shape[1]
    biases = [group[2:] or [group[0].new_zeros(GATES[cell] * hidden)] * 2 for group in groups]
    if cell != "gru":
        split: list[Tensors] = [[b_ih + b_hh] for b_ih, b_hh in biases]
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
        self._known: dict[Hashable, Tensors] = {}

    def derive(self, kind: str, weights: Tensors, make: Callable[[Tensors], Tensors]) -> Tensors:
        """Return `make(weights)`, from memory if it is of this kind and was made of the same weights before."""
        if any(storage_ptr(weight) not in self._storages for weight in weights):
            return make(weights)
        key = (kind, tuple([(weight.data_ptr(), weight.shape, weight.stride()) for weight in weights]))
        if key not in self._known:
            self._known[key] = made = make(weights)
            self._storages.update(storage_ptr(weight) for weight in made)
        return self._known[key]
