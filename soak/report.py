"""A run for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from .load import Observed
from .readings import Reading
from .standing import Standing, plain_table, standings_json
from .steadiness import ends

_MB = 1e6


def process_table(readings: Mapping[str, Sequence[Reading]], total_seconds: float) -> Table:
    """Medians of each process after the warm-up and at the end, and the most memory that it had."""
    table = plain_table("Processes: after the warm-up -> at the end")
    for heading in ("", "memory, MB", "at most, MB", "descriptors", "threads"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, taken in readings.items():
        memory = ends(taken, total_seconds, lambda one: one.resident / _MB)
        descriptors = ends(taken, total_seconds, lambda one: one.descriptors)
        threads = ends(taken, total_seconds, lambda one: one.threads)
        most = max((one.resident / _MB for one in taken), default=float("nan"))
        table.add_row(
            name,
            f"{memory.first:.1f} -> {memory.last:.1f}",
            f"{most:.1f}",
            f"{descriptors.first:g} -> {descriptors.last:g}",
            f"{threads.first:g} -> {threads.last:g}",
        )
    return table


def kind_table(observed: Observed, kinds: Sequence[str]) -> Table:
    """A row for each kind of bad request."""
    table = plain_table("Bad requests")
    for heading in ("", "sent", "as documented"):
        table.add_column(heading, justify="right" if heading else "left")
    for kind in kinds:
        table.add_row(kind, f"{observed.tally.bad_sent[kind]}", f"{observed.tally.bad_refused[kind]}")
    return table


def figures(observed: Observed, found: Sequence[Standing], settings: Mapping[str, object]) -> dict[str, Any]:
    """All figures of a run; a reading is [seconds, bytes of memory, descriptors, threads]."""
    tally = observed.tally
    return {
        "settings": dict(settings),
        "seconds": observed.seconds,
        "requests": {
            "all": tally.sent,
            "good": tally.good_sent,
            "good and right": tally.good_right,
            "sessions": tally.sessions_begun,
            "sessions finished": tally.sessions_finished,
        },
        "bad": {kind: {"sent": sent, "refused": tally.bad_refused[kind]} for kind, sent in tally.bad_sent.items()},
        "failed": tally.failed,
        "wrong": tally.wrong,
        "laws": standings_json(found),
        "readings": {name: [list(one) for one in taken] for name, taken in observed.readings.items()},
    }
