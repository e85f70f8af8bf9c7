"""Recurrent operators on a device: exact for ragged rows, without a wait for a value.

A kernel of this project computes them where there is one for their size. Elsewhere the device's own layers do, by the
method of `masked.py`: they run over the padded rows in one direction, the other direction is a flip within each length,
and last states are read at each row's own end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import masked
from .derived_weights import DerivedWeights
from .kernel_layers import run_layers
from .kernels.interface import RecurrenceKernel

Flatten = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]


def recurrent_functions(
    derived: DerivedWeights, flatten: Flatten, kernel: RecurrenceKernel | None, precision: torch.dtype
) -> Mapping[str, Callable[..., Any]]:
    """Return the recurrent operators by the names that sources of programs call.

    `flatten` lays a layer's weights out for the device's own layers. Recurrences of float32 compute in `precision`.
    """

    def own_kernel(x: Tensor, weights: Sequence[Tensor], *, projected: bool) -> RecurrenceKernel | None:
        if kernel is None or projected or {x.dtype, weights[0].dtype} != {torch.float32}:
            return None
        return kernel if kernel.computes(weights[1].shape[1]) else None

    def reduced(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.to(precision) if tensor.dtype == torch.float32 else tensor for tensor in tensors]

    def widened(weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return derived.derive("gate mask", weights, masked.gate_mask_weights)

    def flat(cell: str, layer: masked.Layer) -> masked.Layer:
        def run(x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
            given = [state.contiguous() for state in states]  # cuDNN refuses others
            return layer(x, given, derived.derive(cell, weights, lambda own: flatten(cell, own)))

        return run

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
    ) -> tuple[Tensor, ...]:
        if (own := own_kernel(x, weights, projected=masked.is_projected(h_0, c_0))) is not None:
            directions = 2 if bidirectional else 1
            y, (h_n, c_n) = run_layers(
                own, derived, precision, "lstm", x, lengths, [h_0, c_0], weights, layers, directions
            )
            return y, h_n, c_n if need_cell else torch.zeros_like(c_n)
        used = derived.derive(str(precision), weights, reduced)
        given, layer = reduced([x, h_0, c_0]), flat("lstm", masked.aten_lstm)
        found = masked.masked_lstm(
            layer, given[0], lengths, given[1], given[2], used, layers, bidirectional, need_cell, widened
        )
        return tuple([tensor.to(x.dtype) for tensor in found])

    def rnn(
        x: Tensor,
        lengths: Tensor | None,
        h_0: Tensor,
        weights: Sequence[Tensor],
        cell: str,
        bias: bool,
        layers: int,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        if (own := own_kernel(x, weights, projected=False)) is not None:
            directions = 2 if bidirectional else 1
            y, (h_n,) = run_layers(own, derived, precision, cell, x, lengths, [h_0], weights, layers, directions)
            return y, h_n
        used = derived.derive(str(precision), weights, reduced)
        given, layer = reduced([x, h_0]), flat(cell, masked.aten_rnn(cell))
        found = masked.masked_rnn(layer, given[0], lengths, given[1], used, layers, bidirectional)
        return tuple([tensor.to(x.dtype) for tensor in found])

    return {"lstm": lstm, "rnn": rnn}
