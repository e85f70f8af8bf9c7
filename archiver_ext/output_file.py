"""Files that a command writes for its user: whole at their path, or the file before is still there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..inference.errors import ArchiveError
from ..inference.private_directory import private_directory
from .archive.workspace import replace_atomically


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write; one that exists is replaced at the end, in one step.

    A link stays, and a device is written to directly.

    Raises:
        ArchiveError: its folder does not exist.
        OSError: it cannot be written; the file before is as it was.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    destination = path.resolve()
    if not destination.parent.is_dir():
        raise ArchiveError(f"there is no folder {path.parent}")
    with private_directory(destination.parent) as beside:
        written = beside / destination.name
        with written.open("wb") as file:
            yield file
        if destination.exists():
            shutil.copymode(destination, written)
        replace_atomically(written, destination)


def write_output(path: Path, content: bytes) -> None:
    """Write a file as `open_output` does. Raises `ArchiveError`, `OSError`: as `open_output`."""
    with open_output(path) as file:
        file.write(content)
