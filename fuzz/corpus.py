"""The kept inputs of each target: a corpus, and an input for each defect that was found.

The corpus is the smallest one that reaches what is known to be reached: its files change. The others stay, by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
DEFECTS = Path(__file__).parent / "defects"


def kept_directories(target: str) -> list[Path]:
    """Return the folders of a target's kept inputs."""
    return [CORPUS / target, DEFECTS / target]


def read_inputs(directories: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each input of some folders, by name; missing folders are empty."""
    for directory in directories:
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            yield path.name, path.read_bytes()
