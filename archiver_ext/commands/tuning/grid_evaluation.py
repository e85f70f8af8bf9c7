"""Evaluation of bucket lengths: what an engine computes with them for a histogram, and in which time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....bucketing.bucket_lengths import (
    CostOfLength,
    Histogram,
    PaddingStats,
    clip_histogram,
    mean_cost,
    padding_stats,
)
from .planned_work import PlannedWork
from .time_padding import TimePadding


@dataclass(frozen=True)
class EngineWork:
    """Work of an engine for a sequence, as far as it is known, and the sequences that it serves."""

    padding: TimePadding = "bucket"
    """The length to which the engine pads a sequence."""
    cost: CostOfLength | None = None
    """Milliseconds of a sequence in a full call; None if they are not known."""
    planned: PlannedWork | None = None
    """The work of planned batches, for an engine that pads to the longest sequence of a call."""
    truncate: bool = False
    """Whether sequences beyond the longest are cut to it, not refused."""
    served: int = 0
    """Timesteps of the longest sequence that is served, if that is more than the last length.

    It counts if the engine pads no sequence to a bucket length.
    """

    def evaluate(self, name: str, lengths: Sequence[int], histogram: Histogram) -> GridEvaluation:
        """Return what the engine computes with these lengths for the sequences of the histogram."""
        last = lengths[-1] if self.padding == "bucket" else max(lengths[-1], self.served)
        seen = clip_histogram(histogram, last, truncate=True) if self.truncate else histogram
        held = tuple(lengths)
        if self.padding != "bucket":  # it is as if every length had a bucket
            held = tuple(sorted({last, *(length for length in seen if length <= last)}))
        stats = padding_stats(seen, held)
        computed: int | None = stats.computed
        milliseconds = None if self.cost is None else mean_cost(seen, held, self.cost)
        if self.padding == "call":
            computed = None if self.planned is None else round(stats.useful * self.planned.computed_per_useful)
            milliseconds = None if self.planned is None else self.planned.milliseconds
        return GridEvaluation(name, tuple(lengths), last, stats.useful, computed, stats.refused, milliseconds)


@dataclass(frozen=True)
class GridEvaluation:
    """A grid's lengths, with what an engine computes of a histogram."""

    name: str
    lengths: tuple[int, ...]
    longest: int
    """Timesteps of the longest sequence that is counted.

    The last length, or more if the engine takes every length.
    """
    useful: int
    """Real timesteps of the sequences that are served."""
    computed: int | None
    """Timesteps, padding included.

    None if they depend on the batches, and no costs are known to plan these.
    """
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
