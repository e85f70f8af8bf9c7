"""One batch of typical sequences, and the program calls that are planned for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from ....bucketing.bucket_lengths import Histogram, clip_histogram
from ....bucketing.plan import Plan
from .target import Target

_ROWS = 16
"""Most rows of the batch: as many as a picture shows well."""


@dataclass(frozen=True)
class SampleBatch:
    """Lengths of a batch, and its plan."""

    lengths: tuple[int, ...]
    """Timesteps of each sequence, ascending."""
    plan: Plan
    measured: bool
    """Whether the plan was made by measured costs, not by estimates."""


def make_sample_batch(histogram: Histogram, target: Target, lengths: tuple[int, ...]) -> SampleBatch | None:
    """Plan a batch of typical sequences for bucket lengths.

    None if no planner is known or no sequence is served.
    """
    served = clip_histogram(histogram, lengths[-1], truncate=target.truncate)
    if target.make_planner is None or not any(served.values()):
        return None
    rows = quantiles(served, min(_ROWS, target.batches[-1]))
    return SampleBatch(rows, target.make_planner(lengths).plan(rows), bool(target.costs))


def quantiles(histogram: Histogram, rows: int) -> tuple[int, ...]:
    """Return the lengths in the middle of `rows` equal parts of the sequences, ascending.

    >>> quantiles({3: 2, 5: 1, 9: 1}, rows=4)
    (3, 3, 5, 9)
    """
    lengths = sorted(length for length, number in histogram.items() if number)
    ends = list(accumulate(histogram[length] for length in lengths))
    middles = ((2 * row + 1) * ends[-1] for row in range(rows))
    return tuple(
        next(length for length, end in zip(lengths, ends, strict=True) if middle <= 2 * rows * end)
        for middle in middles
    )
