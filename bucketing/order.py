"""The order in which every planner takes a batch."""

from __future__ import annotations

from collections.abc import Sequence


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The places of the lengths, the longest first, equal ones in their order."""
    rows = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    if rows and lengths[rows[-1]] < 1:
        raise ValueError(f"request {rows[-1]} has {lengths[rows[-1]]} timesteps: an empty sequence cannot be planned")
    return rows
