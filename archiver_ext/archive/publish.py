"""Putting a finished archive in its place in one step: it is there whole, or what was there before still is."""

from __future__ import annotations

import os
from pathlib import Path

from .. import stock
from ..errors import PackagingError
from .workspace import private_directory


def publish(flags: stock.Flags, tree: Path, manifest: str) -> Path:
    """Archive `tree` in the format asked for and move the archive to where the flags say. Returns its path.

    It is written beside its destination first, in a hidden folder: within one file system a move is one step.

    Raises:
        PackagingError: it cannot be written there, or an archive is there by now and --force was not given.
    """
    destination = stock.check_destination(flags)
    try:
        with private_directory(destination.parent) as beside:
            archive = stock.write_archive(flags, tree, manifest, beside)
            _move(archive, destination, beside / "previous")
    except OSError as error:
        raise PackagingError(f"{destination} cannot be written: {error}") from error
    return destination


def _move(archive: Path, destination: Path, aside: Path) -> None:
    """A folder cannot be moved over another, so an old one is moved aside first, and back if the move fails."""
    if not (archive.is_dir() and destination.exists()):
        os.replace(archive, destination)  # noqa: PTH105 - Path.replace does the same, without saying that it is one step
        return
    destination.rename(aside)
    try:
        archive.rename(destination)
    except OSError:
        aside.rename(destination)
        raise
