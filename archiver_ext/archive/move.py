"""Putting what is finished in its place in one step: it is there whole, or what was there before still is."""

from __future__ import annotations

import os
from pathlib import Path


def move(finished: Path, destination: Path, aside: Path) -> None:
    """Move a file or a folder to where another may be. All three are in one file system, and `aside` is free.

    A folder cannot be moved over another, so an old one is moved aside first, and back if the move fails.

    Raises:
        OSError: it cannot be moved.
    """
    if not (finished.is_dir() and destination.exists()):
        os.replace(finished, destination)  # noqa: PTH105 - Path.replace does the same, without saying that it is one step
        return
    destination.rename(aside)
    try:
        finished.rename(destination)
    except OSError:
        aside.rename(destination)
        raise
