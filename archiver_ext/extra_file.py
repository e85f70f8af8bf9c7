"""File of a module that a key of the YAML names, as in `module:Class`."""

from __future__ import annotations

from pathlib import Path

from .errors import PackagingError


def extra_file(key: str, reference: str, directory: Path) -> Path:
    """Return the file that a reference of the YAML's `key` is in.

    Raises:
        PackagingError: there is no such file among the extra files.
    """
    file = directory.joinpath(*reference.partition(":")[0].split(".")).with_suffix(".py")
    if not file.is_file():
        named = f"neuron_lstm.{key}: {reference}"
        raise PackagingError(f"{named}: there is no {file.name} in the archive; give it with --extra-files")
    return file
