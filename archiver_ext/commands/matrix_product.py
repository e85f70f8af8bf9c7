"""Matrix product whose rate is the reference for recurrent engines on the same machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_GEMM_SIZE = 2048

GEMM_FLOP = 2 * _GEMM_SIZE**3
"""Floating-point operations of one call of `gemm()`."""


def gemm() -> Callable[[], object]:
    """Return a float32 product of two 2048 x 2048 matrices, with all threads that torch has."""
    left, right, product = (torch.rand(_GEMM_SIZE, _GEMM_SIZE) for _ in range(3))
    return lambda: torch.mm(left, right, out=product)


def gemm_gflops(seconds: Sequence[float]) -> float:
    """Compute the best rate of `gemm()`, in GFLOP/s.

    >>> round(gemm_gflops([0.2, 0.1]))
    172
    """
    return GEMM_FLOP / min(seconds) / 1e9
