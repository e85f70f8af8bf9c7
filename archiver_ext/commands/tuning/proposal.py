"""Proposal of bucket lengths: the optimal ones for a histogram, beside the current ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ....bucketing.bucket_lengths import (
    Histogram,
    clip_histogram,
    cost_in_timesteps,
    optimal_lengths,
)
from .grid_evaluation import EngineWork, GridEvaluation
from .time_padding import TimePadding

Objective = Literal["cost", "timesteps"]
_DEFAULT_COUNT = 8
_UNKNOWN_WORK = EngineWork()


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
    objective: Objective | None = None,
    work: EngineWork = _UNKNOWN_WORK,
) -> Proposal:
    """Find the optimal lengths for a histogram, and evaluate them and the current ones.

    By default `count` is the current number of lengths, and `longest` is the longest sequence that is observed or
    accepted now. The objective is milliseconds if the engine's `work` has their cost, else timesteps. If the engine
    pads no sequence to a bucket length, the current lengths stay, unless `count` or `longest` asks for others.

    >>> proposal = propose({3: 50, 5: 20, 30: 1}, current=(16, 32))
    >>> proposal.proposed.lengths, proposal.proposed.refused
    ((5, 32), 0)

    Raises:
        ValueError: no sequence would be served, or the objective is an unknown cost.
    """
    if objective is None:
        objective = "timesteps" if work.cost is None else "cost"
    if objective == "cost" and work.cost is None:
        raise ValueError("the cost of a length is not known")
    longest = longest or max([*histogram, *current])
    accepted = clip_histogram(histogram, longest, truncate=work.truncate)
    price = work.cost if objective == "cost" and work.cost is not None else cost_in_timesteps
    lengths = optimal_lengths(accepted, count or len(current) or _DEFAULT_COUNT, price)
    if work.padding != "bucket" and current and count is None:
        lengths = (*(length for length in current if length < longest), longest)
    today = work.evaluate("current", current, histogram) if current else None
    return Proposal(histogram, objective, today, work.evaluate("proposed", lengths, histogram), work.padding)
