"""The trials beside each other."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .tally import Tally
from .verdict import Verdict


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
        "pieces applied twice": f"{tally.answers[Verdict.TWICE]}",
        "pieces sent again": f"{sum(tally.retries.values())}",
        "  because": reasons or "-",
        "of them answered as before": f"{tally.replayed}",
        "workers killed": f"{tally.worker_kills}",
        "servers killed": f"{tally.server_kills}",
        "sessions begun again": f"{tally.begun_again}",
        "disturbances": "\n".join(f"{what}: {count}" for what, count in tally.disturbances.items()) or "-",
        "seconds": f"{tally.seconds:.0f}",
    }
