"""Putting a finished archive in its place in one step: it is there whole, or what was there before still is."""

from __future__ import annotations

from pathlib import Path

from .. import stock
from ..errors import PackagingError
from .move import move
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
            move(archive, destination, beside / "previous")
    except OSError as error:
        raise PackagingError(f"{destination} cannot be written: {error}") from error
    return destination
