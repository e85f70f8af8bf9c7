"""An archive again with another manifest: every other file as it was."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

from ...config.manifest import FILE_NAME
from ..errors import PackagingError
from .workspace import private_directory


def with_manifest(archive: Path, text: str, destination: Path) -> None:
    """Write `archive` to `destination` with this text as its variants.json; the two may be the same file.

    It is written beside its destination first: what was there before is replaced in one step, or stays.

    Raises:
        PackagingError: it cannot be written, or a folder is to be written elsewhere than where it is.
    """
    if archive.is_dir() and destination.resolve() != archive.resolve():
        raise PackagingError(f"{archive} is a folder, which is rewritten where it is: leave --output out")
    target = archive / FILE_NAME if archive.is_dir() else destination
    try:
        with private_directory(target.parent) as beside:
            written = beside / target.name
            if archive.is_dir():
                written.write_text(text, encoding="utf-8")
            elif zipfile.is_zipfile(archive):
                _rewrite_zip(archive, text, written)
            else:
                _rewrite_tar(archive, text, written)
            os.replace(written, target)  # noqa: PTH105 - Path.replace does the same, without saying that it is one step
    except OSError as error:
        raise PackagingError(f"{target} cannot be written: {error}") from error


def _rewrite_zip(archive: Path, text: str, written: Path) -> None:
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(written, "w") as new:
        for entry in old.infolist():
            data = text.encode() if entry.filename == FILE_NAME else old.read(entry)
            new.writestr(entry, data)


def _rewrite_tar(archive: Path, text: str, written: Path) -> None:
    with tarfile.open(archive) as old, tarfile.open(written, "w:gz") as new:
        for entry in old:
            if entry.name.partition("/")[2] == FILE_NAME:
                data = text.encode()
                entry.size = len(data)
                new.addfile(entry, io.BytesIO(data))
            else:
                new.addfile(entry, old.extractfile(entry))
