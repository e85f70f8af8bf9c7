"""Carried values of a batch as one text of bytes for each row, and back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import CarriedValue, TensorSpec

Tensors = tuple[torch.Tensor, ...]


class StateSerializer:
    """The layout of one sequence's carried values as bytes: one after the other, as they lie in memory.

    >>> from torchserve_neuron_lstm.bucketing.shapes import CarriedValue
    >>> hidden = TensorSpec("h", "float32", ("batch", 2))
    >>> layout = StateSerializer([CarriedValue(hidden, 0.0)])
    >>> layout.size
    8
    >>> layout.read(layout.write([torch.tensor([[1.0, 2.0], [3.0, 4.0]])]))
    (tensor([[1., 2.],
            [3., 4.]]),)
    """

    def __init__(self, carried: Sequence[CarriedValue]) -> None:
        self.specs = [value.spec for value in carried]
        self._widths = [
            prod(_sizes(spec)) * torch.empty(0, dtype=torch_dtype(spec)).element_size() for spec in self.specs
        ]

    @property
    def size(self) -> int:
        """Bytes of one sequence."""
        return sum(self._widths)

    def write(self, values: Sequence[torch.Tensor]) -> list[bytes]:
        """The bytes of each row of the carried values."""
        rows = len(values[0]) if values else 0
        whole = bytearray(max(1, rows * self.size))
        table = torch.frombuffer(whole, dtype=torch.uint8)[: rows * self.size].view(rows, self.size)
        begin = 0
        for value, width in zip(values, self._widths, strict=True):
            own = value.reshape(rows, -1).contiguous()
            table[:, begin : begin + width] = own.view(torch.uint8)
            begin += width
        return [bytes(whole[row * self.size : (row + 1) * self.size]) for row in range(rows)]

    def read(self, states: Sequence[bytes]) -> Tensors:
        """The carried values of rows with these bytes.

        Raises:
            ValueError: bytes of another layout.
        """
        if any(len(state) != self.size for state in states):
            raise ValueError(f"a state has {self.size} bytes, not {[len(state) for state in states]}")
        if not self.specs or not states:
            return tuple(torch.zeros(spec.sizes(len(states), 1), dtype=torch_dtype(spec)) for spec in self.specs)
        table = torch.frombuffer(bytearray(b"".join(states)), dtype=torch.uint8).view(len(states), self.size)
        values, begin = [], 0
        for spec, width in zip(self.specs, self._widths, strict=True):
            own = table[:, begin : begin + width].contiguous().view(torch_dtype(spec))
            values.append(own.view(len(states), *_sizes(spec)))
            begin += width
        return tuple(values)


def _sizes(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(int(size) for size in spec.item_shape)
