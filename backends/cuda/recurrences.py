"""Recurrent operators on a device: exact for ragged rows, without a wait for a value.

`masked.py` has the method: layers run over the padded rows in one direction, the other direction is a flip within each
length, and last states are read at each row's own end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import masked
from .derived_weights import DerivedWeights

Flatten = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]


def recurrent_functions(
    derived: DerivedWeights, flatten: Flatten, precision: torch.dtype
) -> Mapping[str, Callable[..., Any]]:
    """Return the recurrent operators by the names that sources of programs call.

    `flatten` lays a layer's weights out for the device. Recurrences of float32 compute in `precision`.
    """

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
        used = derived.derive(str(precision), weights, reduced)
        given, layer = reduced([x, h_0]), flat(cell, masked.aten_rnn(cell))
        found = masked.masked_rnn(layer, given[0], lengths, given[1], used, layers, bidirectional)
        return tuple([tensor.to(x.dtype) for tensor in found])

    return {"lstm": lstm, "rnn": rnn}
