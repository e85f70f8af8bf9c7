"""Costs that decide the cuts of a batch in time, as measured."""

from __future__ import annotations


def call_overhead(weights: int, device: str) -> int:
    """Return the overhead of a call, in timesteps of one row, for a layer with so many weights.

    A GPU computes a timestep of all rows at once, so a row less saves little: with small layers nothing.

    >>> call_overhead(4 * 32 * (16 + 32), "cpu"), call_overhead(4 * 256 * (128 + 256), "cpu")
    (1152, 144)
    >>> call_overhead(4 * 128 * (128 + 128), "cuda")
    12288
    """
    return 3 * 2**29 // weights if device == "cuda" else 128 + 3 * 2**21 // weights


def max_segment(gates: int, device: str, whole: int) -> int:
    """Return the most timesteps of rows in one call, for a layer with so many gates (4H in an LSTM).

    On a CPU the values saved for the backward pass, about 4 numbers for each gate, then stay below 32 MiB. Beyond that
    the C library requests new memory from the system each time, which takes as long as computing the values. torch
    keeps the memory of a GPU, so a call may take the `whole` batch.

    >>> max_segment(4 * 32, "cpu", 10**6), max_segment(4 * 256, "cpu", 10**6), max_segment(4 * 32, "cuda", 10**6)
    (8192, 1024, 1000000)
    """
    return whole if device == "cuda" else max(1, 2**20 // gates)
