"""Windows of many sequences, each of which is planned as one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LARGEST = 1024
"""Sequences of one window: enough for good plans, few enough for quick ones and little memory."""


def windows(lengths: Sequence[int], largest: int = LARGEST) -> Iterator[list[int]]:
    """Yield the indices of all sequences, the longest first, in windows of at most `largest`.

    Sequences of one window have similar lengths, so that its plan is nearly as good as a plan of them all.

    >>> list(windows([5, 1, 9, 1], largest=3))
    [[2, 0, 1], [3]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    for start in range(0, len(order), largest):
        yield order[start : start + largest]
