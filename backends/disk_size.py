"""Size of files on disk."""

from __future__ import annotations

from pathlib import Path


def disk_size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
