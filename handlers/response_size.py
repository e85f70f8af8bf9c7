"""Size of a response, known before it is computed: the fewest bytes that its numbers take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ..bucketing.shapes import TensorSpec
from ..bucketing.time_sizes import size_at

_JSON_BYTES = 2
"""A digit and a comma."""
_NPY_BYTES = {"float64": 8, "int64": 8, "int32": 4, "int16": 2, "float16": 2, "int8": 1, "uint8": 1, "bool": 1}
"""Bytes of a number; 4 for others."""


class OutputSizes(NamedTuple):
    """Numbers in the outputs of sequences."""

    outputs: tuple[TensorSpec, ...]

    def least_bytes(self, lengths: Iterable[int], *, npy: bool) -> int:
        """Return the fewest bytes of a response for sequences of these lengths.

        >>> tags = OutputSizes((TensorSpec("tags", "float32", ("batch", "time", 5)),))
        >>> tags.least_bytes([10, 20], npy=False), tags.least_bytes([10], npy=True)
        (300, 200)
        """
        size = _NPY_BYTES.get(self.outputs[0].dtype, 4) if npy else _JSON_BYTES
        return size * sum(_numbers(self.outputs, length) for length in lengths)


@lru_cache(maxsize=4096)
def _numbers(outputs: Sequence[TensorSpec], length: int) -> int:
    """Return how many numbers the outputs of one sequence have."""
    return sum(
        prod(size if isinstance(size, int) else size_at(size, length) for size in spec.item_shape) for spec in outputs
    )
