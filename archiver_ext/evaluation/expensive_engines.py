"""Decision whether an engine that compiles each bucket slowly is compiled for all of them.

It is compiled for the longest bucket of the smallest and of the largest batch size, and measured there. From these
costs its batches are planned as they would be with all buckets, which gives the time to expect for one batch of each
size: by that, engines are compared in the end. The expectation is too low rather than too high, because a call of fewer
timesteps counts in proportion, without what each call costs by itself. So an engine that could win is not left out.
"""

from __future__ import annotations

from ...bucketing.shapes import Bucket, BucketGrid

MARGIN = 0.1
"""Share of the time that an engine must be expected to save to be worth its compilation."""
DISTURBED_MARGIN = 0.5
"""The same where other work disturbed the comparison: it slows down engines with threads most."""


def first_buckets(grid: BucketGrid) -> tuple[Bucket, ...]:
    """Choose the buckets to compile first: the longest, with the fewest and the most rows.

    >>> first_buckets(BucketGrid(batches=(1, 4, 8), lengths=(16, 32)))
    (Bucket(batch=1, length=32), Bucket(batch=8, length=32))
    """
    return tuple(Bucket(rows, grid.lengths[-1]) for rows in dict.fromkeys((grid.batches[0], grid.batches[-1])))


def could_win(expected_ms: float, fastest_ms: float, *, undisturbed: bool = True) -> bool:
    """Whether an engine is compiled for all buckets: it is expected to save more than a margin.

    `fastest_ms` is the time of the fastest of the other engines. Both are measured in the same alternating rounds.

    >>> could_win(expected_ms=8.0, fastest_ms=10.0), could_win(expected_ms=9.5, fastest_ms=10.0)
    (True, False)
    >>> could_win(expected_ms=8.0, fastest_ms=10.0, undisturbed=False)
    False
    """
    margin = MARGIN if undisturbed else DISTURBED_MARGIN
    return expected_ms < (1 - margin) * fastest_ms
