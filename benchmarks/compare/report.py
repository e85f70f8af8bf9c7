"""A comparison as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ..standing import plain_table
from .figures import SIDES, Compared, SideName
from .sides import Side

ENOUGH = 20
"""Pairs that a result needs."""
BUSY = 0.9
_COLOURS = {"within": "green", "within, not certain": "yellow", "slower, not certain": "red", "slower": "red"}


def print_run(sides: Mapping[SideName, Side], found: Sequence[Compared], pairs: int, console: Console) -> None:
    """Print a row for each figure, and the remarks on the run."""
    table = plain_table(f"CPU time a request, {pairs} pairs: us of the hot path, ms of the archive")
    table.add_column("", no_wrap=True)
    for heading in ("base", "head", "ratio (95 % interval)", "at most"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for one in found:
        places = 3 if one.figure.kind == "archive" else 2
        base, head = (f"{one.typical(side):.{places}f}" for side in SIDES)
        ratio = f"{one.ratio.median:.3f} ({one.ratio.low:.3f} to {one.ratio.high:.3f})"
        standing = f"[{_COLOURS[one.verdict]}]{one.verdict}"
        table.add_row(one.figure.what, base, head, ratio, f"{one.figure.floor:.2f}", standing)
    console.print(table)
    for line in remarks(sides, found, pairs):
        console.print(line, highlight=False, markup=False)


def remarks(sides: Mapping[SideName, Side], found: Sequence[Compared], pairs: int) -> list[str]:
    """List the compared commits, and the reasons to doubt the figures."""
    lines = [f"{side}: {sides[side].commit}" for side in SIDES]
    if pairs < ENOUGH:
        lines.append(f"a trial: a result needs {ENOUGH} pairs")
    share = min(one.share for one in found)
    if share < BUSY:
        lines.append(f"the machine was busy: the processes got {share:.0%} of their core's time")
    return lines


def to_json(sides: Mapping[SideName, Side], found: Sequence[Compared], about: Mapping[str, object]) -> dict[str, Any]:
    """All figures for machines; `values` has one value for each pair."""
    return {
        "about": {**about, **{side: sides[side].commit for side in SIDES}},
        "figures": [
            {
                "name": one.figure.name,
                "unit": one.figure.unit,
                "base": one.typical("base"),
                "head": one.typical("head"),
                "ratio": one.ratio.median,
                "low": one.ratio.low,
                "high": one.ratio.high,
                "coverage": one.ratio.coverage,
                "floor": one.figure.floor,
                "verdict": one.verdict,
                "core_share": one.share,
                "values": {side: list(one.values[side]) for side in SIDES},
            }
            for one in found
        ],
    }
