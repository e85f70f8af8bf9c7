"""The outcome of a campaign, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .campaign import TargetResult
from .line_coverage import FileCoverage

Coverage = Mapping[str, Mapping[str, FileCoverage]]
"""The coverage of each decoder, by target and file."""


def numbers(results: Mapping[str, TargetResult], coverage: Coverage) -> dict[str, Any]:
    """Return the outcome as it is printed with `--json`.

    >>> numbers({"tokens": TargetResult(10, 2.0, {})}, {"tokens": {"a.py": FileCoverage(4, (2,))}})["tokens"]
    {'runs': 10, 'seconds': 2.0, 'findings': {}, 'coverage': {'a.py': {'lines': 4, 'missed': [2], 'percent': 75.0}}}
    """
    return {
        name: {
            "runs": result.runs,
            "seconds": round(result.seconds, 1),
            "findings": result.causes,
            "coverage": {file: _file_numbers(one) for file, one in coverage.get(name, {}).items()},
        }
        for name, result in results.items()
    }


def _file_numbers(one: FileCoverage) -> dict[str, Any]:
    return {"lines": one.lines, "missed": list(one.missed), "percent": round(one.percent, 1)}


def shown(results: Mapping[str, TargetResult], coverage: Coverage) -> Group:
    """Return the outcome as tables."""
    runs = Table(title="Fuzzed inputs", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    runs.add_column("target")
    for column in ("runs", "seconds", "findings"):
        runs.add_column(column, justify="right")
    for name, result in results.items():
        runs.add_row(name, f"{result.runs:,}", f"{result.seconds:.0f}", str(len(result.causes)))
    lines = Table(title="Lines that the corpus reaches", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    lines.add_column("decoder")
    for column in ("lines", "reached"):
        lines.add_column(column, justify="right")
    lines.add_column("missed")
    for files in coverage.values():
        for file, one in files.items():
            lines.add_row(file, str(one.lines), f"{one.percent:.1f} %", ", ".join(map(str, one.missed)) or "-")
    causes = [f"{name}/{file}: {cause}" for name, result in results.items() for file, cause in result.causes.items()]
    return Group(runs, lines, Text("\n".join(causes) or "no input violates a property"))
