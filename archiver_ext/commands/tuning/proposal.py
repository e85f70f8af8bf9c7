"""`neuron-lstm tune`: what a grid's lengths come to for a histogram, and better ones."""

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

Objective = Literal["cost", "timesteps"]
_DEFAULT_COUNT = 8


@dataclass(frozen=True)
class GridEvaluation:
    """A grid's lengths, and what a histogram comes to with them."""

    name: str
    lengths: tuple[int, ...]
    padding: PaddingStats
    milliseconds: float | None
    """Of a sequence on average, among as many as a call takes; None where no cost is known."""

    def as_json(self) -> dict[str, Any]:
        """For programs that read it."""
        return {
            "lengths": list(self.lengths),
            "padded_share": self.padding.ratio,
            "useful_timesteps": self.padding.useful,
            "computed_timesteps": self.padding.computed,
            "refused_sequences": self.padding.refused,
            "milliseconds_per_sequence": self.milliseconds,
        }


@dataclass(frozen=True)
class Proposal:
    """The lengths of today, if there are any, and those proposed."""

    histogram: Histogram
    objective: Objective
    today: GridEvaluation | None
    proposed: GridEvaluation

    @property
    def sequences(self) -> int:
        """How many there are in the histogram."""
        return sum(self.histogram.values())

    @property
    def mean(self) -> float:
        """Timesteps of a sequence on average."""
        return sum(length * number for length, number in self.histogram.items()) / self.sequences

    @property
    def grids(self) -> tuple[GridEvaluation, ...]:
        """Both, or only what is proposed."""
        return tuple(grid for grid in (self.today, self.proposed) if grid is not None)

    def as_json(self) -> dict[str, Any]:
        """For programs that read it."""
        return {
            "sequences": self.sequences,
            "shortest": min(self.histogram),
            "longest": max(self.histogram),
            "mean": self.mean,
            "objective": self.objective,
            "today": None if self.today is None else self.today.as_json(),
            "proposed": self.proposed.as_json(),
        }


def propose(
    histogram: Histogram,
    *,
    today: Sequence[int] = (),
    count: int | None = None,
    longest: int | None = None,
    cost: CostOfLength | None = None,
    objective: Objective | None = None,
    truncate: bool = False,
) -> Proposal:
    """The best lengths for a histogram, beside those of today.

    Left out, `count` is as many as today, and `longest` the longest sequence that was seen or is accepted today. By
    default the milliseconds count where their `cost` is known, and timesteps where not. `truncate`: sequences beyond
    the longest are cut to it, not refused.

    >>> proposal = propose({3: 50, 5: 20, 30: 1}, today=(16, 32))
    >>> proposal.proposed.lengths, proposal.proposed.padding.refused
    ((5, 32), 0)

    Raises:
        ValueError: no sequence would be served, or there is no cost where it shall count.
    """
    if objective is None:
        objective = "timesteps" if cost is None else "cost"
    if objective == "cost" and cost is None:
        raise ValueError("there is no cost to go by")
    longest = longest or max([*histogram, *today])
    served = clip_histogram(histogram, longest, truncate=truncate)
    price = cost if objective == "cost" and cost is not None else cost_in_timesteps
    lengths = optimal_lengths(served, count or len(today) or _DEFAULT_COUNT, price)

    def judged(name: str, lengths: Sequence[int]) -> GridEvaluation:
        seen = clip_histogram(histogram, lengths[-1], truncate=True) if truncate else histogram
        milliseconds = None if cost is None else mean_cost(seen, lengths, cost)
        return GridEvaluation(name, tuple(lengths), padding_stats(seen, lengths), milliseconds)

    return Proposal(histogram, objective, judged("today", today) if today else None, judged("proposed", lengths))
