"""What `neuron-lstm analyze` tells people: a line for each engine, and below it what the engines do not take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...backends.partitioning.analysis import Analysis

_HINT = (
    "what an engine does not take can run on the CPU within the same model: name the engine as backend, and write "
    "partitioner_config: {}"
)


def print_analyses(analyses: Sequence[Analysis], console: Console) -> None:
    """Print the tables."""
    console.print(_overview(analyses))
    if any(analysis.unsupported for analysis in analyses):
        console.print(_unsupported(analyses))
    for line in _remarks(analyses):
        console.print(escape(line), highlight=False, soft_wrap=True)


def _remarks(analyses: Sequence[Analysis]) -> Iterator[str]:
    for analysis in analyses:
        if analysis.unknown is not None:
            yield f"{analysis.backend}: {analysis.unknown}"
        if analysis.not_installed is not None:
            yield f"{analysis.backend} is not installed: {analysis.not_installed}"
    if any(analysis.unsupported for analysis in analyses):
        yield _HINT


def _overview(analyses: Sequence[Analysis]) -> Table:
    table = Table("backend", highlight=False)
    for heading in ("supported", "unsupported", "share"):
        table.add_column(heading, justify="right")
    table.add_column("remark")
    for analysis in analyses:
        share, remark = analysis.percentage, "" if analysis.not_installed is None else "not installed"
        if analysis.supported is None or share is None:
            table.add_row(analysis.backend, "?", "?", "?", remark)
        else:
            taken = str(sum(analysis.supported.values()))
            table.add_row(analysis.backend, taken, str(len(analysis.unsupported)), f"{share:.1f} %", remark)
    return table


def _unsupported(analyses: Sequence[Analysis]) -> Table:
    """Each operator of each line once, with how often it is there."""
    table = Table("backend", highlight=False)
    table.add_column("operator", overflow="fold")
    table.add_column("times", justify="right")
    table.add_column("in the model", overflow="fold")
    table.add_column("why", overflow="fold")
    for analysis in analyses:
        counts = Counter((one.kind, one.call or "", one.reason) for one in analysis.unsupported)
        for (kind, call, reason), count in counts.items():
            table.add_row(analysis.backend, kind, str(count), escape(call), escape(reason))
        table.add_section()
    return table
