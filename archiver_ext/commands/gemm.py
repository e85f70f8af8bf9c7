"""The machine's own rate of matrix multiplication: what no recurrent engine on it can beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_SIZE = 2048

GEMM_FLOP = 2 * _SIZE**3
"""Floating-point operations of one call of `gemm()`."""


def gemm() -> Callable[[], object]:
    """A float32 product of two 2048 x 2048 matrices, with all threads that torch has."""
    left, right, product = (torch.rand(_SIZE, _SIZE) for _ in range(3))
    return lambda: torch.mm(left, right, out=product)


def gemm_gflops(seconds: Sequence[float]) -> float:
    """The best rate that was seen, in GFLOP/s.

    >>> round(gemm_gflops([0.2, 0.1]))
    172
    """
    return GEMM_FLOP / min(seconds) / 1e9
