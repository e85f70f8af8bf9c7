"""Proposal of bucket lengths: the padding and cost of a grid for a histogram, and the optimal lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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

if TYPE_CHECKING:
    from rich.console import Console

Objective = Literal["cost", "timesteps"]
_DEFAULT_COUNT = 8


@dataclass(frozen=True)
class GridEvaluation:
    """A grid's lengths, with the padding and cost of a histogram."""

    name: str
    lengths: tuple[int, ...]
    padding: PaddingStats
    milliseconds: float | None
    """Mean milliseconds of a sequence in a full call; None where no cost is known."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures for machines."""
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
    """The current lengths, if there are any, and the proposed ones."""

    histogram: Histogram
    objective: Objective
    current: GridEvaluation | None
    proposed: GridEvaluation

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

    def to_json(self) -> dict[str, Any]:
        """Return the figures for machines."""
        return {
            "sequences": self.sequences,
            "shortest": min(self.histogram),
            "longest": max(self.histogram),
            "mean": self.mean,
            "objective": self.objective,
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
) -> Proposal:
    """Find the optimal lengths for a histogram, and evaluate them beside the current ones.

    By default `count` is the current number of lengths, `longest` the longest sequence that is observed or accepted
    now, and the objective the milliseconds if their `cost` is known, else timesteps. `truncate`: sequences beyond the
    longest are cut to it, not refused.

    >>> proposal = propose({3: 50, 5: 20, 30: 1}, current=(16, 32))
    >>> proposal.proposed.lengths, proposal.proposed.padding.refused
    ((5, 32), 0)

    Raises:
        ValueError: no sequence would be served, or the objective is an unknown cost.
    """
    if objective is None:
        objective = "timesteps" if cost is None else "cost"
    if objective == "cost" and cost is None:
        raise ValueError("the cost of a length is not known")
    longest = longest or max([*histogram, *current])
    served = clip_histogram(histogram, longest, truncate=truncate)
    price = cost if objective == "cost" and cost is not None else cost_in_timesteps
    lengths = optimal_lengths(served, count or len(current) or _DEFAULT_COUNT, price)

    def evaluate(name: str, lengths: Sequence[int]) -> GridEvaluation:
        seen = clip_histogram(histogram, lengths[-1], truncate=True) if truncate else histogram
        milliseconds = None if cost is None else mean_cost(seen, lengths, cost)
        return GridEvaluation(name, tuple(lengths), padding_stats(seen, lengths), milliseconds)

    today = evaluate("current", current) if current else None
    return Proposal(histogram, objective, today, evaluate("proposed", lengths))


def print_proposal(proposal: Proposal, console: Console) -> None:
    """Print a summary of the histogram, and the figures and lengths of each grid."""
    from ...tables import make_table

    console.print(summary(proposal), highlight=False)
    costs = [] if proposal.proposed.milliseconds is None else ["ms per sequence"]
    table = make_table("grid", numbers=("lengths", "padding", "computed timesteps", "refused", *costs))
    for grid in proposal.grids:
        table.add_row(*_cells(grid))
    console.print(table)
    for grid in proposal.grids:
        console.print(f"{grid.name:<8}  {', '.join(map(str, grid.lengths))}", highlight=False, soft_wrap=True)


def summary(proposal: Proposal) -> str:
    """Describe the histogram in a sentence."""
    shortest, longest = min(proposal.histogram), max(proposal.histogram)
    return f"{proposal.sequences:,} sequences of {shortest} to {longest} timesteps, {proposal.mean:.1f} on average"


def padding_percent(grid: GridEvaluation) -> str:
    """Format the padding ratio in percent."""
    return f"{100 * grid.padding.ratio:.1f} %"


def _cells(grid: GridEvaluation) -> list[str]:
    counts = [str(len(grid.lengths)), padding_percent(grid), f"{grid.padding.computed:,}", f"{grid.padding.refused:,}"]
    return [grid.name, *counts, *([] if grid.milliseconds is None else [f"{grid.milliseconds:.4f}"])]
