"""Recurrent operators on a device: exact for ragged rows, without a wait for a value.

A kernel of this project computes them where there is one for their size. Elsewhere the device's own layers do, by the
method of `masked.py`: they run over the padded rows in one direction, the other direction is a flip within each length,
and last states are read at each row's own end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import masked
from .kernel_layers import DerivedWeights, run_layers
from .kernels.interface import RecurrenceKernel

Flatten = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]
Compute = Callable[[masked.Layer, Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
"""A recurrent operator by a fused layer: layer, x and states, weights -> results."""


@dataclass(frozen=True)
class DeviceRecurrences:
    """The operators of `masked.py`, by the project's kernel or by the device's own layers."""

    derived: DerivedWeights
    flatten: Flatten
    """A function that lays a layer's weights out for the device's own layers."""
    kernel: RecurrenceKernel | None
    precision: torch.dtype
    """The one in which recurrences of float32 are computed."""

    def lstm(
        self,
        x: Tensor,
        lengths: Tensor | None,
        h_0: Tensor,
        c_0: Tensor,
        weights: Sequence[Tensor],
        bias: bool,
        layers: int,
        bidirectional: bool,
        need_cell: bool,
    ) -> tuple[Tensor, ...]:
        """Compute the `lstm` operator."""
        kernel = None if masked.is_projected(h_0, c_0) else self._kernel_for(x, weights)
        if kernel is not None:
            directions = 2 if bidirectional else 1
            y, (h_n, c_n) = run_layers(
                kernel, self.derived, self.precision, "lstm", x, lengths, [h_0, c_0], weights, layers, directions
            )
            return y, h_n, c_n if need_cell else torch.zeros_like(c_n)

        def compute(layer: masked.Layer, given: Sequence[Tensor], used: Sequence[Tensor]) -> tuple[Tensor, ...]:
            x, h_0, c_0 = given
            return masked.masked_lstm(
                layer, x, lengths, h_0, c_0, used, bias, layers, bidirectional, need_cell, self._with_gate_mask
            )

        return self._by_device_layers("lstm", masked.aten_lstm, compute, [x, h_0, c_0], weights)

    def rnn(
        self,
        x: Tensor,
        lengths: Tensor | None,
        h_0: Tensor,
        weights: Sequence[Tensor],
        cell: str,
        bias: bool,
        layers: int,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        """Compute the `rnn` operator."""
        kernel = self._kernel_for(x, weights)
        if kernel is not None:
            directions = 2 if bidirectional else 1
            y, (h_n,) = run_layers(
                kernel, self.derived, self.precision, cell, x, lengths, [h_0], weights, layers, directions
            )
            return y, h_n

        def compute(layer: masked.Layer, given: Sequence[Tensor], used: Sequence[Tensor]) -> tuple[Tensor, ...]:
            x, h_0 = given
            return masked.masked_rnn(layer, x, lengths, h_0, used, layers, bidirectional)

        return self._by_device_layers(cell, masked.aten_rnn(cell), compute, [x, h_0], weights)

    def _kernel_for(self, x: Tensor, weights: Sequence[Tensor]) -> RecurrenceKernel | None:
        """The project's kernel, if it computes layers of this size and dtype without a projection."""
        if self.kernel is None or {x.dtype, weights[0].dtype} != {torch.float32}:
            return None
        return self.kernel if self.kernel.computes(weights[1].shape[1]) else None

    def _by_device_layers(
        self, cell: str, layer: masked.Layer, compute: Compute, given: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Compute in the precision, and return results of the dtype of x."""

        def on_flat_weights(
            x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
        ) -> tuple[Tensor, Sequence[Tensor]]:
            flat = self.derived.derive(cell, weights, lambda own: self.flatten(cell, own))
            return layer(x, [state.contiguous() for state in states], flat)  # cuDNN refuses other states

        used = self.derived.derive(str(self.precision), weights, self._reduced)
        results = compute(on_flat_weights, self._reduced(given), used)
        return tuple([tensor.to(given[0].dtype) for tensor in results])

    def _reduced(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.to(self.precision) if tensor.dtype == torch.float32 else tensor for tensor in tensors]

    def _with_gate_mask(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return self.derived.derive("gate mask", weights, masked.gate_mask_weights)
