"""File of verdicts, a line of JSON for each seed, so that a count can be continued."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .verdict import Verdict


def append(file: Path, verdict: Verdict) -> None:
    """Add a line to the file, which is made if it is missing; a line before it that was cut off is ended."""
    ended = not file.exists() or file.read_bytes()[-1:] in (b"\n", b"")
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{'' if ended else chr(10)}{json.dumps(asdict(verdict))}\n")


def read(file: Path, seeds: Container[int]) -> dict[int, Verdict]:
    """Return the verdicts of the file on some seeds, by seed; a line that was cut off is left out."""
    return {verdict.seed: verdict for verdict in _lines(file) if verdict.seed in seeds}


def _lines(file: Path) -> Iterator[Verdict]:
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        try:
            fields: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        yield Verdict(**{**fields, "features": tuple(fields["features"])})
