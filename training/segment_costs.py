"""Costs that decide the cuts of a batch in time, as measured."""

from __future__ import annotations

_LEAST_PADDING = 2**14


def call_overhead(weights: int) -> int:
    """Return the overhead of a call on a CPU, in timesteps of one row, for a layer with so many weights.

    >>> call_overhead(4 * 32 * (16 + 32)), call_overhead(4 * 256 * (128 + 256))
    (1152, 144)
    """
    return 128 + 3 * 2**21 // weights


def gpu_call_overhead(weights: int, real: int) -> int:
    """Return the overhead of a call on a GPU, for a batch with so many real timesteps.

    A GPU computes a timestep of all rows at once, so a row less saves little, and in small layers nothing. But padding
    takes memory, which is kept for the backward pass: one call has no more of it than the batch has real timesteps.

    >>> gpu_call_overhead(4 * 128 * (128 + 128), 10**6), gpu_call_overhead(4 * 32 * (16 + 32), 10**5)
    (12288, 100000)
    """
    return min(3 * 2**29 // weights, max(real, _LEAST_PADDING))


def max_segment(gates: int) -> int:
    """Return the most timesteps of rows in one call on a CPU, for a layer with so many gates.

    An LSTM has 4H.

    The values saved for the backward pass, about 4 numbers for each gate, then stay below 32 MiB. Beyond that the C
    library requests new memory from the system each time, which takes as long as computing the values.

    >>> max_segment(4 * 32), max_segment(4 * 256)
    (8192, 1024)
    """
    return max(1, 2**20 // gates)
