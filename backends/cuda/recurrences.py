"""Recurrent operators on a device: exact for ragged rows, without a wait for a value.

A kernel of this project computes them where there is one for their size. Elsewhere the device's own layers do, by the
method of `masked.py`: they run over the padded rows in one direction, the other direction is a flip within each length,
and last states are read at each row's own end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import masked
from .kernel_layers import DerivedWeights, run_layers
from .kernels.interface import RecurrenceKernel

Flatten = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]


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
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        layers: int,
        bidirectional: bool,
        hold: masked.Widen | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute in the precision, and return results of the dtype of x."""
        kernel, directions = self._kernel_for(x, states, weights), 2 if bidirectional else 1
        if kernel is not None:
            return run_layers(
                kernel, self.derived, self.precision, cell, x, lengths, states, weights, layers, directions
            )
        layer = masked.aten_layer(cell)

        def on_flat_weights(
            x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
        ) -> tuple[Tensor, Sequence[Tensor]]:
            flat = self.derived.derive(cell, weights, lambda own: self.flatten(cell, own))
            return layer(x, [state.contiguous() for state in states], flat)  # cuDNN refuses other states

        used = self.derived.derive(str(self.precision), weights, self._reduced)
        first, *initial = self._reduced([x, *states])
        y, finals = masked.masked_layers(on_flat_weights, first, lengths, initial, used, layers, bidirectional, hold)
        return y.to(x.dtype), [final.to(x.dtype) for final in finals]

    def _kernel_for(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> RecurrenceKernel | None:
        """The project's kernel, if it computes layers of this size and dtype; it has no projections."""
        has_projection = len({state.shape for state in states}) > 1
        if self.kernel is None or has_projection or {x.dtype, weights[0].dtype} != {torch.float32}:
            return None
        return self.kernel if self.kernel.computes(weights[1].shape[1]) else None

    def _reduced(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.to(self.precision) if tensor.dtype == torch.float32 else tensor for tensor in tensors]

    def _with_gate_mask(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return self.derived.derive("gate mask", weights, masked.gate_mask_weights)
