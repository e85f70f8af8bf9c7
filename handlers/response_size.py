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
_BINARY_BYTES = {
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of a number; 4 for others."""


class OutputSizes(NamedTuple):
    """Numbers in the outputs of sequences."""

    outputs: tuple[TensorSpec, ...]

    def least_bytes(self, lengths: Sequence[int], wanted: Iterable[tuple[int, bool]]) -> int:
        """Return the fewest bytes of a response for sequences of these lengths.

        `wanted` has the index of each output of the response, and whether its numbers are bytes instead of text.

        >>> tags = OutputSizes((TensorSpec("tags", "float32", ("batch", "time", 5)),))
        >>> tags.least_bytes([10, 20], [(0, False)]), tags.least_bytes([10], [(0, True)])
        (300, 200)
        """
        return sum(
            (_BINARY_BYTES.get(spec.dtype, 4) if binary else _JSON_BYTES)
            * sum(_numbers(spec, length) for length in lengths)
            for spec, binary in [(self.outputs[index], binary) for index, binary in wanted]
        )


@lru_cache(maxsize=4096)
def _numbers(spec: TensorSpec, length: int) -> int:
    """Return how many numbers an output of one sequence has."""
    return prod(size if isinstance(size, int) else size_at(size, length) for size in spec.item_shape)
