"""A proposal as a table on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from .proposal import GridEvaluation, Proposal


def print_proposal(proposal: Proposal, console: Console) -> None:
    """What was seen, what each grid comes to, and the lengths of each."""
    console.print(summary(proposal), highlight=False)
    table = Table("grid", highlight=False)
    for column in ("lengths", "padding", "computed timesteps", "refused"):
        table.add_column(column, justify="right")
    if proposal.proposed.milliseconds is not None:
        table.add_column("ms a sequence", justify="right")
    for grid in proposal.grids:
        table.add_row(*_cells(grid))
    console.print(table)
    for grid in proposal.grids:
        console.print(f"{grid.name:<8}  {', '.join(map(str, grid.lengths))}", highlight=False, soft_wrap=True)


def summary(proposal: Proposal) -> str:
    """The histogram in a sentence."""
    shortest, longest = min(proposal.histogram), max(proposal.histogram)
    return f"{proposal.sequences:,} sequences of {shortest} to {longest} timesteps, {proposal.mean:.1f} on average"


def padding_percent(grid: GridEvaluation) -> str:
    """The waste, in percent."""
    return f"{100 * grid.padding.ratio:.1f} %"


def _cells(grid: GridEvaluation) -> list[str]:
    counts = [str(len(grid.lengths)), padding_percent(grid), f"{grid.padding.computed:,}", f"{grid.padding.refused:,}"]
    return [grid.name, *counts, *([] if grid.milliseconds is None else [f"{grid.milliseconds:.4f}"])]
