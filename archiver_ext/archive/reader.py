"""An archive's files on disk, as a host has them: the way back from `publish`."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...config.manifest import FILE_NAME
from ..errors import PackagingError
from .workspace import private_directory


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """The folder with the files of a .mar or a .tar.gz: private, and gone afterwards. A folder is used where it is.

    Raises:
        PackagingError: it is none of these, cannot be read, or was not packaged with the handler neuron_lstm.
    """
    if not archive.exists():
        raise PackagingError(f"there is no archive {archive}")
    if archive.is_dir():
        yield _ours(archive, archive)
        return
    with private_directory() as directory:
        try:
            _extract(archive, directory)
        except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
            raise PackagingError(f"{archive} is damaged: {error}") from error
        yield _ours(archive, _root(directory))


def _extract(archive: Path, directory: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            file.extractall(directory)  # noqa: S202 - zipfile keeps names inside the folder by itself
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as file:
            file.extractall(directory, filter="data")
    else:
        raise PackagingError(f"{archive} is no archive: expected a .mar, a .tar.gz or a folder")


def _root(directory: Path) -> Path:
    """The files of a .tar.gz lie in one folder, which is named after the model."""
    inside = list(directory.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else directory


def _ours(archive: Path, directory: Path) -> Path:
    if not (directory / FILE_NAME).is_file():
        raise PackagingError(f"{archive} has no {FILE_NAME}: it was not packaged with --handler neuron_lstm")
    return directory
