"""Mutants that once survived: each is killed by a test since, or harmless for a reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

FILE = Path(__file__).with_name("survivors.yaml")


@dataclass(frozen=True)
class Survivor:
    """A change of a file that no test noticed."""

    file: str
    """From the repository's root."""
    before: str
    after: str
    killed_by: str | None = None
    """The test that notices it now."""
    harmless: str | None = None
    """The reason why no test can notice it, or need not."""

    def text(self, source: str) -> str:
        r"""Return the file's text with the change.

        >>> print(Survivor("a.py", "y = x + 1", "y = x - 1").text("def f(x):\n    y = x + 1\n    return y"))
        def f(x):
            y = x - 1
            return y

        Raises:
            ValueError: the file has no such lines, or has them several times.
        """
        lines, wanted = source.splitlines(), self.before.splitlines()
        starts = [
            start
            for start in range(len(lines) - len(wanted) + 1)
            if [line.strip() for line in lines[start : start + len(wanted)]] == wanted
        ]
        if len(starts) != 1:
            raise ValueError(f"{self.file} has {len(starts)} times: {self.before}. Correct {FILE.name}")
        (start,) = starts
        indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
        changed = [f"{indent}{line}" for line in self.after.splitlines()]
        return "\n".join([*lines[:start], *changed, *lines[start + len(wanted) :]])


def read_survivors() -> list[Survivor]:
    """Read `survivors.yaml`."""
    return [Survivor(**entry) for entry in yaml.safe_load(FILE.read_text(encoding="utf-8")) or []]


def harmless_changes() -> set[tuple[str, str, str]]:
    """Return file, lines before and lines after of each harmless survivor."""
    return {(one.file, one.before, one.after) for one in read_survivors() if one.harmless is not None}
