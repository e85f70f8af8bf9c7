"""Floor and aim of a figure, and the standing of a measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

_COLOURS = {"aim": "green", "floor": "yellow", "missed": "red"}


@dataclass(frozen=True)
class Standing:
    """One floor and the measured value."""

    what: str
    value: float
    floor: float
    """The smallest (or largest) accepted value."""
    aim: float
    better: Literal["more", "less"] = "more"

    @property
    def reached(self) -> Literal["aim", "floor", "missed"]:
        """Whether the floor and the aim are met; not-a-number meets neither."""
        if self._is_enough_for(self.aim):
            return "aim"
        return "floor" if self._is_enough_for(self.floor) else "missed"

    def _is_enough_for(self, mark: float) -> bool:
        return self.value >= mark if self.better == "more" else self.value <= mark

    @property
    def bound(self) -> str:
        """The floor in words."""
        return f"at {'least' if self.better == 'more' else 'most'} {self.floor:.2f}"


def missed(found: Sequence[Standing]) -> list[str]:
    """A line for each floor that does not hold."""
    return [
        f"missed: {standing.what}: {standing.value:.2f}, {standing.bound}"
        for standing in found
        if standing.reached == "missed"
    ]


def conclude(found: Sequence[Standing]) -> int:
    """Print which floors do not hold. Returns the exit code of a benchmark."""
    lines = missed(found)
    print("\n".join(lines) or "every floor holds")
    return 1 if lines else 0


def write_figures(figures: Mapping[str, object], file: Path | None) -> None:
    """Write all figures as JSON, if there is a file for them."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")


def standings_table(found: Sequence[Standing]) -> Table:
    """The standings as a table for people."""
    table = plain_table("What must hold")
    table.add_column("")
    for heading in ("measured", "floor", "aim", "reached"):
        table.add_column(heading, justify="right", no_wrap=True)
    for standing in found:
        reached = f"[{_COLOURS[standing.reached]}]{standing.reached}"
        table.add_row(standing.what, f"{standing.value:.2f}", standing.bound, f"{standing.aim:.2f}", reached)
    return table


def standings_json(found: Sequence[Standing]) -> list[dict[str, Any]]:
    """The standings for machines.

    A value that was not measured is None: JSON has no not-a-number.
    """
    values = (one.value if isfinite(one.value) else None for one in found)
    return [{**asdict(one), "value": value, "reached": one.reached} for one, value in zip(found, values, strict=True)]


def plain_table(title: str) -> Table:
    """A table in the style of all benchmarks."""
    return Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, highlight=False
    )
