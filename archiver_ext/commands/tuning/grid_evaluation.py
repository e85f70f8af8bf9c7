"""Evaluation of bucket lengths: what an engine computes with them for a histogram, and in which time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....bucketing.bucket_lengths import Histogram, PaddingStats, clip_histogram, mean_cost, padding_stats
from .target import Target


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
