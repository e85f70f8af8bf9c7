"""Proposal of bucket lengths: the padding and cost of a grid for a histogram, and the optimal lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ....bucketing.bucket_lengths import (
    CostOfLength,
    Histogram,
    PaddingStats,
    clip_histogram,
    cost_in_timesteps,
    mean_cost,
    optimal_lengths,
    padding_stats,
)
from .planned_work import PlannedWork
from .time_padding import TimePadding

Objective = Literal["cost", "timesteps"]
_DEFAULT_COUNT = 8


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


@dataclass(frozen=True)
class Proposal:
    """The current lengths, if there are any, and the proposed ones."""

    histogram: Histogram
    objective: Objective
    current: GridEvaluation | None
    proposed: GridEvaluation
    padding: TimePadding = "bucket"
    """The length to which the engine pads a sequence."""

    @property
    def sequences(self) -> int:
        """Number of sequences in the histogram."""
        return sum(self.histogram.values())

    @property
    def mean(self) -> float:
        """Mean number of timesteps of a sequence."""
        return sum(length * number for length, number in self.histogram.items()) / self.sequences

    @property
    def grids(self) -> tuple[GridEvaluation, ...]:
        """Both grids, or only the proposed one."""
        return tuple(grid for grid in (self.current, self.proposed) if grid is not None)

    @property
    def distinct_grids(self) -> tuple[GridEvaluation, ...]:
        """The grids to draw: one, if the lengths do not matter and stay as they are."""
        if self.padding != "bucket" and self.current is not None and self.current.lengths == self.proposed.lengths:
            return (self.current,)
        return self.grids

    def to_json(self) -> dict[str, Any]:
        """Return the figures for machines."""
        return {
            "sequences": self.sequences,
            "shortest": min(self.histogram),
            "longest": max(self.histogram),
            "mean": self.mean,
            "objective": self.objective,
            "pads_to": self.padding,
            "today": None if self.current is None else self.current.to_json(),
            "proposed": self.proposed.to_json(),
        }


def propose(
    histogram: Histogram,
    *,
    current: Sequence[int] = (),
    count: int | None = None,
    longest: int | None = None,
    cost: CostOfLength | None = None,
    objective: Objective | None = None,
    truncate: bool = False,
    padding: TimePadding = "bucket",
    served: int = 0,
    planned: PlannedWork | None = None,
) -> Proposal:
    """Find the optimal lengths for a histogram, and evaluate them and the current ones.

    By default `count` is the current number of lengths, and `longest` is the longest sequence that is observed or
    accepted now. The objective is milliseconds if their `cost` is known, else timesteps. `truncate`: sequences beyond
    the longest are cut to it, not refused. If the engine pads no sequence to a bucket length, the current lengths stay,
    unless `count` or `longest` asks for others. Then sequences of up to `served` timesteps are counted, if that is more
    than the last length. `planned` is what the engine computes if it pads to the longest sequence of a call.

    >>> proposal = propose({3: 50, 5: 20, 30: 1}, current=(16, 32))
    >>> proposal.proposed.lengths, proposal.proposed.refused
    ((5, 32), 0)

    Raises:
        ValueError: no sequence would be served, or the objective is an unknown cost.
    """
    if objective is None:
        objective = "timesteps" if cost is None else "cost"
    if objective == "cost" and cost is None:
        raise ValueError("the cost of a length is not known")
    longest = longest or max([*histogram, *current])
    accepted = clip_histogram(histogram, longest, truncate=truncate)
    price = cost if objective == "cost" and cost is not None else cost_in_timesteps
    lengths = optimal_lengths(accepted, count or len(current) or _DEFAULT_COUNT, price)
    if padding != "bucket" and current and count is None:
        lengths = (*(length for length in current if length < longest), longest)

    def evaluate(name: str, lengths: Sequence[int]) -> GridEvaluation:
        last = lengths[-1] if padding == "bucket" else max(lengths[-1], served)
        seen = clip_histogram(histogram, last, truncate=True) if truncate else histogram
        return _evaluate(name, tuple(lengths), last, seen, cost, padding, planned)

    today = evaluate("current", current) if current else None
    return Proposal(histogram, objective, today, evaluate("proposed", lengths), padding)


def _evaluate(
    name: str,
    lengths: tuple[int, ...],
    last: int,
    seen: Histogram,
    cost: CostOfLength | None,
    padding: TimePadding,
    planned: PlannedWork | None,
) -> GridEvaluation:
    held = lengths
    if padding != "bucket":  # it is as if every length had a bucket of its own
        held = tuple(sorted({last, *(length for length in seen if length <= last)}))
    stats = padding_stats(seen, held)
    computed: int | None = stats.computed
    milliseconds = None if cost is None else mean_cost(seen, held, cost)
    if padding == "call":
        computed = None if planned is None else round(stats.useful * planned.computed_per_useful)
        milliseconds = None if planned is None else planned.milliseconds
    return GridEvaluation(name, lengths, last, stats.useful, computed, stats.refused, milliseconds)
