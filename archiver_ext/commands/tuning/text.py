"""A proposal in words, for terminals and for the head of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .grid_evaluation import GridEvaluation
from .proposal import Proposal

if TYPE_CHECKING:
    from rich.console import Console

    from .target import Target


def print_proposal(proposal: Proposal, target: Target, console: Console) -> None:
    """Print the summary, the work of the engine, and the figures and lengths of each grid."""
    from ...tables import make_table

    console.print(summary(proposal), highlight=False)
    for sentence in explanation(target):
        console.print(sentence, highlight=False, soft_wrap=True)
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


def explanation(target: Target) -> tuple[str, ...]:
    """Describe what an engine computes that pads no sequence to a bucket length; empty for one that does."""
    engine = target.engine
    if engine.lengths_matter:
        return ()
    rows = target.batches[-1]
    estimate = (
        f"The padding is that of planned batches of {counted(rows, 'sequence')}"
        if target.costs
        else ("The padding depends on the batches; --archive estimates it")
    )
    computes = {
        "none": f"{engine.engine} stops each row of a call at its own end: its recurrent layers compute no padding.",
        "call": f"{engine.engine} takes every length: a call is padded to its longest sequence. {estimate}.",
    }
    limits = f"up to {counted(rows, 'row')} in a call, and up to {counted(target.longest, 'timestep')} in a sequence"
    return (
        computes[engine.padding],
        f"Other bucket lengths save no time. The buckets are limits only: {limits}.",
    )


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


def timesteps(number: int | None) -> str:
    """Format a number of computed timesteps."""
    return "by batch" if number is None else f"{number:,}"


def counted(number: int, what: str) -> str:
    """Format a number with its noun.

    >>> counted(1, "length"), counted(1024, "length")
    ('1 length', '1,024 lengths')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _cells(grid: GridEvaluation) -> list[str]:
    counts = [str(len(grid.lengths)), padding_percent(grid.ratio), timesteps(grid.computed), f"{grid.refused:,}"]
    return [grid.name, *counts, *([] if grid.milliseconds is None else [f"{grid.milliseconds:.4f}"])]
