"""Evaluation of bucket lengths: what an engine computes with them for a histogram, and in which time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....bucketing.bucket_lengths import Histogram, PaddingStats, clip_histogram, mean_cost, padding_stats
from .target import Target
from .time_padding import TimePadding


@dataclass(frozen=True)
class GridEvaluation:
    """A grid's lengths, with what an engine computes of a histogram."""

    name: str
    lengths: tuple[int, ...]
    longest: int
    """Timesteps of the longest sequence that is counted. The last length, or more if the engine takes every length."""
    useful: int
    """Real timesteps of the sequences that are served."""
    computed: int | None
    """Timesteps, padding included. None if they depend on the batches, as the milliseconds do then."""
    refused: int
    """Number of sequences that are too long; the other figures exclude them."""
    milliseconds: float | None
    """Mean milliseconds of a sequence in a full call; None where no cost is known."""

    @property
    def ratio(self) -> float | None:
        """Padding ratio; None where the computed timesteps are not known."""
        if self.computed is None:
            return None
        return PaddingStats(self.useful, self.computed, self.refused).ratio

    @property
    def counted_up_to(self) -> tuple[int, ...]:
        """The lengths, and the longest sequence that is counted."""
        return self.lengths if self.longest == self.lengths[-1] else (*self.lengths, self.longest)

    def to_json(self) -> dict[str, Any]:
        """Return the figures for machines."""
        return {
            "lengths": list(self.lengths),
            "padded_share": self.ratio,
            "useful_timesteps": self.useful,
            "computed_timesteps": self.computed,
            "refused_sequences": self.refused,
            "milliseconds_per_sequence": self.milliseconds,
        }


def evaluate_grid(name: str, lengths: Sequence[int], histogram: Histogram, target: Target) -> GridEvaluation:
    """Return what the engine computes with these lengths for the sequences of the histogram."""
    last, held = lengths[-1], tuple(lengths)
    if target.serves_longer and not target.engine.lengths_matter:
        last = max(last, target.longest)
    seen = clip_histogram(histogram, last, truncate=True) if target.truncate else histogram
    if not target.engine.lengths_matter:  # it is as if every length had a bucket
        held = tuple(sorted({last, *(length for length in seen if length <= last)}))
    stats = padding_stats(seen, held)
    computed: int | None = stats.computed
    milliseconds = None if target.cost_of_length is None else mean_cost(seen, held, target.cost_of_length)
    if target.engine.padding == "call":
        computed = milliseconds = None
    return GridEvaluation(name, tuple(lengths), last, stats.useful, computed, stats.refused, milliseconds)


@dataclass(frozen=True)
class BucketUse:
    """Sequences that one bucket length holds."""

    length: int
    sequences: int
    useful: int
    """Real timesteps."""
    padded: int | None
    """Timesteps of padding that are computed for them; None if that depends on the batches."""


def bucket_uses(histogram: Histogram, lengths: Sequence[int], padding: TimePadding) -> tuple[BucketUse, ...]:
    """Total the sequences of each bucket length; those that no length holds are left out.

    >>> [(use.sequences, use.padded) for use in bucket_uses({3: 2, 9: 1}, (4, 10), "bucket")]
    [(2, 2), (1, 1)]
    """
    uses = []
    for below, length in zip((0, *lengths), lengths, strict=False):
        held = {steps: number for steps, number in histogram.items() if below < steps <= length}
        useful = sum(steps * number for steps, number in held.items())
        padded = {"bucket": length * sum(held.values()) - useful, "none": 0, "call": None}[padding]
        uses.append(BucketUse(length, sum(held.values()), useful, padded))
    return tuple(uses)
