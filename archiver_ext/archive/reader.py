"""An archive's files on disk, as a host has them: the way back from `publish`."""

from __future__ import annotations

import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...config.manifest import FILE_NAME
from ..errors import PackagingError
from .workspace import private_directory

_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    struct.error,
    ValueError,
    RuntimeError,  # a method of compression that is none, or a password
)
_BEGINNINGS = (b"PK\x03\x04", b"\x1f\x8b")
"""Of a .mar and a .tar.gz."""


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
        with damage_told(archive):
            _extract(archive, directory)
        yield _ours(archive, _root(directory))


@contextmanager
def damage_told(archive: Path) -> Iterator[None]:
    """Raise what damage makes of reading an archive as a `PackagingError` that names the archive."""
    try:
        yield
    except _DAMAGE as error:
        raise PackagingError(f"{archive} is damaged: {str(error) or type(error).__name__}") from error


def check_to_the_end(file: tarfile.TarFile) -> None:
    """Read what follows the last member: the checksum of a .tar.gz is its end, and reading it compares it."""
    assert file.fileobj is not None
    while file.fileobj.read(1 << 20):
        continue


def no_archive(archive: Path) -> PackagingError:
    """The refusal of a file that is neither a zip nor a tar file, at least not any more."""
    with archive.open("rb") as file:
        beginning = file.read(4)
    if beginning.startswith(_BEGINNINGS):
        return PackagingError(f"{archive} is damaged: its end is missing")
    return PackagingError(f"{archive} is no archive: expected a .mar, a .tar.gz or a folder")


def _extract(archive: Path, directory: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            file.extractall(directory)  # noqa: S202 - zipfile keeps names inside the folder by itself
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as file:
            file.extractall(directory, filter="data")
            check_to_the_end(file)
    else:
        raise no_archive(archive)


def _root(directory: Path) -> Path:
    """The files of a .tar.gz lie in one folder, which is named after the model."""
    inside = list(directory.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else directory


def _ours(archive: Path, directory: Path) -> Path:
    if not (directory / FILE_NAME).is_file():
        raise PackagingError(f"{archive} has no {FILE_NAME}: it was not packaged with --handler neuron_lstm")
    return directory
