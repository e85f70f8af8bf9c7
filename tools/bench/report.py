"""Results of a benchmark: Markdown tables for people, and one JSON format for machines."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

_PACKAGES = ("torch", "onnxruntime", "torchserve", "ray", "torchserve-neuron-lstm")


@dataclass(frozen=True)
class Row:
    """The figures of one contestant in one case."""

    case: str
    contestant: str
    figures: Mapping[str, float | str]
    """Figures by name; the name has the unit."""
    rounds: Sequence[float] = ()
    """One value for each round, from which the figures follow. They are in the JSON alone."""


@dataclass(frozen=True)
class Table:
    """Rows that are compared with each other."""

    title: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Result:
    """All results of one program."""

    tables: Sequence[Table]
    notes: Sequence[str] = ()
    """Remarks on the run, such as reasons to doubt its figures."""


def text_of(result: Result) -> str:
    """Return the result as Markdown.

    >>> rows = [Row("B=8", "ours", {"ms": 1.23456}), Row("B=8", "eager", {"ms": 1234.5, "times ours": 1000.0})]
    >>> print(text_of(Result([Table("On one core", rows)], ["the machine was busy"])))
    On one core
    <BLANKLINE>
    | case | contestant | ms | times ours |
    |---|---|---|---|
    | B=8 | ours | 1.23 | |
    | | eager | 1,234 | 1,000 |
    <BLANKLINE>
    the machine was busy
    """
    return "\n".join([*(line for table in result.tables for line in _table_lines(table)), *result.notes])


def _table_lines(table: Table) -> list[str]:
    names = list(dict.fromkeys(name for row in table.rows for name in row.figures))
    texts = [name for name in ("case", "contestant") if any(getattr(row, name) for row in table.rows)]
    lines = [table.title, "", _line(*texts, *names), "|" + "---|" * len([*texts, *names])]
    former = ""
    for row in table.rows:
        cells = ["" if (name, row.case) == ("case", former) else getattr(row, name) for name in texts]
        lines.append(_line(*cells, *(_shown(row.figures[name]) if name in row.figures else "" for name in names)))
        former = row.case
    return [*lines, ""]


def _line(*cells: str) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value.replace("|", "/")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def about_run() -> dict[str, object]:
    """Describe the run: its date and command, the machine, and the releases of packages."""
    return {
        "date": datetime.now(tz=timezone.utc).date().isoformat(),
        "command": " ".join(["python", "-m", "tools.bench", *sys.argv[1:]]),
        "machine": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "versions": {item.name: item.version for item in metadata.distributions() if item.name in _PACKAGES},
    }


def _processor() -> str:
    """Return the processor's name: Linux has it in a file on x86 alone."""
    name = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return name[1] if name else platform.machine()
