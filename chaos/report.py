"""Tables and last lines of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .tally import Tally
from .verdict import Verdict

SHOWN = 20
"""The largest number of failure lines that are printed."""


def table(tallies: Mapping[str, Tally]) -> Table:
    """The tallies as a table for people."""
    shown = Table(title="Sessions under chaos", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column("")
    for name in tallies:
        shown.add_column(name, justify="right")
    rows = [_rows(tally) for tally in tallies.values()]
    for what in rows[0] if rows else ():
        shown.add_row(what, *(row[what] for row in rows))
    return shown


def _rows(tally: Tally) -> dict[str, str]:
    reasons = "\n".join(f"{why}: {count}" for why, count in tally.retries.most_common())
    return {
        "sessions finished": f"{tally.finished}",
        "sessions lost": f"{len(tally.lost)}",
        "answers given": f"{tally.given}",
        "answers wrong": f"{tally.answers[Verdict.WRONG]}",
        "chunks applied twice": f"{tally.answers[Verdict.TWICE]}",
        "chunks sent again": f"{sum(tally.retries.values())}",
        "  because": reasons or "-",
        "of them answered as before": f"{tally.replayed}",
        "workers killed": f"{tally.worker_kills}",
        "servers killed": f"{tally.server_kills}",
        "sessions begun again": f"{tally.begun_again}",
        "disturbances": "\n".join(f"{what}: {count}" for what, count in tally.disturbances.items()) or "-",
        "seconds": f"{tally.seconds:.0f}",
    }


def conclusion(wrong: Sequence[str], seconds: float) -> str:
    """The last lines: the first of what is wrong, and the time that all of it took.

    >>> print(conclusion([], 61.2))
    no session was lost, no answer is wrong, no chunk was applied twice
    All of it took 61 s.
    """
    lines = [*wrong[:SHOWN]] or ["no session was lost, no answer is wrong, no chunk was applied twice"]
    if len(wrong) > SHOWN:
        lines.append(f"... and {len(wrong) - SHOWN} more")
    return "\n".join([*lines, f"All of it took {seconds:.0f} s."])
