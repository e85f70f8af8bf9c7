"""Proposal of bucket lengths: the optimal ones for a histogram, beside the current ones, in figures and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....bucketing.bucket_lengths import Histogram, clip_histogram, mean_cost, optimal_lengths, padding_stats
from ...report_parts import make_table, print_lines
from .target import Target, TimePadding

if TYPE_CHECKING:
    from rich.console import Console

_DEFAULT_COUNT = 8
_UNKNOWN = Target()


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
    ratio: float | None
    """Padding ratio; None where the computed timesteps are not known."""

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
    ratio: float | None = stats.ratio
    milliseconds = None if target.cost_of_length is None else mean_cost(seen, held, target.cost_of_length)
    if target.engine.padding == "call":
        computed = ratio = milliseconds = None
    return GridEvaluation(name, tuple(lengths), last, stats.useful, computed, stats.refused, milliseconds, ratio)


@dataclass(frozen=True)
class Proposal:
    """The current lengths, if there are any, and the proposed ones."""

    histogram: Histogram
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
            "pads_to": self.padding,
            "today": None if self.current is None else self.current.to_json(),
            "proposed": self.proposed.to_json(),
        }


def propose(
    histogram: Histogram, target: Target = _UNKNOWN, *, count: int | None = None, longest: int | None = None
) -> Proposal:
    """Find the optimal lengths for a histogram, and evaluate them and the current ones.

    By default `count` is the current number of lengths, and `longest` is the longest sequence that is observed or
    accepted now. If the engine pads no sequence to a bucket length, the current lengths stay, unless `count` or
    `longest` asks for others.

    >>> proposal = propose({3: 50, 5: 20, 30: 1}, Target(lengths=(16, 32)))
    >>> proposal.proposed.lengths, proposal.proposed.refused
    ((5, 32), 0)

    Raises `ValueError`: no sequence would be served.
    """
    current = target.lengths
    longest = longest or (current[-1] if target.serves_longer else max([*histogram, *current]))
    accepted = clip_histogram(histogram, longest, truncate=target.truncate)
    lengths = optimal_lengths(accepted, count or len(current) or _DEFAULT_COUNT)
    if not target.engine.lengths_matter and current and count is None:
        lengths = (*(length for length in current if length < longest), longest)
    today = evaluate_grid("current", current, histogram, target) if current else None
    proposed = evaluate_grid("proposed", lengths, histogram, target)
    return Proposal(histogram, today, proposed, target.engine.padding)


def print_proposal(proposal: Proposal, target: Target, console: Console) -> None:
    """Print the summary, the work of the engine, and the figures and lengths of each grid."""
    print_lines(console, summary(proposal), *explanation(target))
    costs = [] if proposal.proposed.milliseconds is None else ["ms per sequence"]
    table = make_table("grid", numbers=("lengths", "padding", "computed timesteps", "refused", *costs))
    for grid in proposal.grids:
        computed = "by batch" if grid.computed is None else f"{grid.computed:,}"
        counts = [str(len(grid.lengths)), padding_percent(grid.ratio), computed, f"{grid.refused:,}"]
        table.add_row(grid.name, *counts, *([] if grid.milliseconds is None else [f"{grid.milliseconds:.4f}"]))
    console.print(table)
    print_lines(console, *(f"{grid.name:<8}  {', '.join(map(str, grid.lengths))}" for grid in proposal.grids))


def summary(proposal: Proposal) -> str:
    """Describe the histogram in a sentence."""
    shortest, longest = min(proposal.histogram), max(proposal.histogram)
    return f"{proposal.sequences:,} sequences of {shortest} to {longest} timesteps, {proposal.mean:.1f} on average"


def explanation(target: Target) -> tuple[str, ...]:
    """Describe what an engine computes that pads no sequence to a bucket length; empty for one that does."""
    engine = target.engine
    if engine.lengths_matter:
        return ()
    rows = target.batches[-1]
    computes = {
        "none": f"{engine.engine} stops each row of a call at its own end: its recurrent layers compute no padding.",
        "call": f"{engine.engine} takes every length: a call is padded to its longest sequence, so by batch.",
    }
    limits = f"up to {counted(rows, 'row')} in a call, and up to {counted(target.longest, 'timestep')} in a sequence"
    return (computes[engine.padding], f"Other bucket lengths save no time. The buckets are limits only: {limits}.")


def result(proposal: Proposal) -> str:
    """Describe what the proposal saves; empty without a current grid."""
    current, proposed = proposal.current, proposal.proposed
    if current is None:
        return ""
    if current.refused or proposed.refused:
        return f"Too long: {counted(current.refused, 'sequence')} now, {proposed.refused:,} as proposed"
    if proposal.padding != "bucket" or current.computed is None or proposed.computed is None:
        return "Other bucket lengths save no time"
    change = 100 * (proposed.computed / current.computed - 1)
    return f"{abs(change):.1f} % {'fewer' if change <= 0 else 'more'} timesteps to compute"


def padding_percent(ratio: float | None) -> str:
    """Format a padding ratio in percent.

    >>> padding_percent(0.125), padding_percent(None)
    ('12.5 %', 'by batch')
    """
    return "by batch" if ratio is None else f"{100 * ratio:.1f} %"


def counted(number: int, what: str) -> str:
    """Format a number with its noun.

    >>> counted(1, "length"), counted(1024, "length")
    ('1 length', '1,024 lengths')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
