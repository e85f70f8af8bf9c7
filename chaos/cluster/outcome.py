"""The outcome of a run on a cluster: its figures, and the reasons why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..tally import Tally, failures
from ..verdict import Verdict
from .kinds import Kind
from .rolling_update import Update

LEAST = {Kind.REPLICA: 10, Kind.NODE: 2, Kind.PRIMARY: 1}
"""Disturbances of each kind that a run needs."""


@dataclass(frozen=True)
class Outcome:
    """Results of the sessions and of the rolling update."""

    tally: Tally
    begun: int
    """Sessions that were begun."""
    chunks: int
    """Chunks of each session."""
    update: Update

    def figures(self) -> dict[str, int]:
        """The figures of the report, by name."""
        tally, update = self.tally, self.update
        return {
            "sessions begun": self.begun,
            "sessions finished": tally.finished,
            "sessions lost": len(tally.lost),
            "answers given": tally.given,
            "answers wrong": tally.answers[Verdict.WRONG],
            "chunks applied twice": tally.answers[Verdict.TWICE],
            "chunks sent again": sum(tally.retries.values()),
            **{kind.value: tally.disturbances[kind.value] for kind in Kind},
            "update: answers of the old model": update.old,
            "update: answers of the new model": update.new,
            "update: answers of neither": len(update.wrong),
            "update: requests refused": len(update.refused),
            "seconds under load": round(tally.seconds),
        }

    def failures(self, least: Mapping[Kind, int]) -> list[str]:
        """The reasons why the run fails, where `least` disturbances of each kind are needed."""
        counts = self.tally.disturbances
        found = failures(self.tally, self.begun, self.chunks, 0, 0)
        found += [
            f"{kind.value}: {counts[kind.value]}, at least {count} are needed"
            for kind, count in least.items()
            if counts[kind.value] < count
        ]
        found += [f"the update refused a request: {line}" for line in self.update.refused]
        found += [f"an answer during the update is of neither model: {line}" for line in self.update.wrong]
        if not (self.update.old and self.update.new):
            found.append(f"the update was not under load: {self.update.old} old and {self.update.new} new answers")
        return found

    def table(self) -> Table:
        """The figures as a table for people, with the reasons why chunks were sent again."""
        shown = Table(title="A cluster under chaos", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        shown.add_column("")
        shown.add_column("", justify="right")
        for name, figure in self.figures().items():
            shown.add_row(name, f"{figure}")
        for why, count in self.tally.retries.most_common():
            shown.add_row(f"  sent again: {why}", f"{count}")
        return shown
