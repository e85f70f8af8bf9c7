"""Archives of a command line by the names of their models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..inference.errors import ArchiveError, NamelessArchiveError
from ..inference.reader import ArchiveReader


def archives_by_name(archives: Sequence[Path]) -> dict[str, str]:
    """Return the absolute path of each archive by the name of its model.

    Raises `ArchiveError`: there is no such archive, it is damaged, or two have the same name.
    """
    found: dict[str, str] = {}
    for archive in archives:
        reader, path = ArchiveReader(archive), str(archive.resolve())
        reader.manifest()  # a folder or a file of another kind is refused as that, and not for its missing name
        try:
            name = reader.model_name()
        except NamelessArchiveError as error:
            raise ArchiveError(f"{error}: package the model again, with --model-name") from error
        if name in found:
            raise ArchiveError(
                f"{found[name]} and {path} are both called {name}: archive one of them with another --model-name"
            )
        found[name] = path
    return found
