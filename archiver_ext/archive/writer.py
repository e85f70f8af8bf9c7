"""Atomic writer of archives: an archive is complete at its path, or the previous one is still there."""

from __future__ import annotations

import copy
import errno
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...config.file_errors import describe_file_error
from ...config.manifest import FILE_NAME
from ...handlers.neuron_lstm import LIST
from ...inference.errors import ArchiveError
from ...inference.private_directory import private_directory
from ...inference.reader import ArchiveReader, is_zip
from .. import model_archiver
from ..errors import PackagingError
from .archived_files import check_files
from .file_list import renewed_list, write_list
from .workspace import replace_atomically


def rewrite_manifest(archive: Path, text: str, destination: Path, read: bytes | None = None) -> bool:
    """Write `archive` to `destination` with this text as its variants.json; both may be the same file.

    `read` and the result are those of `rewrite_archive`.

    Raises `PackagingError`: as `rewrite_archive`.
    """
    with private_directory() as private:
        written = private / FILE_NAME
        written.write_text(text, encoding="utf-8")
        return rewrite_archive(archive, {FILE_NAME: written}, destination, read)


def rewrite_archive(archive: Path, files: Mapping[str, Path], destination: Path, read: bytes | None = None) -> bool:
    """Write `archive` to `destination` with some of its files replaced; both may be the same.

    `files` maps paths that are in the archive already to the new files. The archive's list SHA256SUMS is renewed.
    `read` is that list when the archive was read for this; None: it is not compared. Returns whether the archive was
    signed: the signature holds no longer, and is removed.

    Raises `PackagingError`: it cannot be read or written, or is another one by now.
    """
    content = ArchiveReader(archive).file_list() if read is None else read
    renewed, was_signed = renewed_list(content, files)
    with private_directory() as private:
        (private / LIST).write_bytes(renewed)
        write_files(archive, {**files, LIST: private / LIST}, destination, content)
    return was_signed


def write_files(archive: Path, files: Mapping[str, Path], destination: Path, read: bytes) -> None:
    """Write `archive` to `destination` with some of its files replaced, and nothing else changed.

    A folder stays a folder. Everything is written beside the destination first: the previous archive is replaced in one
    step, or stays. In a folder, a manifest and the list are replaced one right after the other. `read` is the archive's
    list SHA256SUMS when it was read for this.

    Raises `PackagingError`: it cannot be written, or is another one by now.
    """
    place = destination.resolve()  # a link stays
    try:
        if archive.is_dir() and files.keys() <= {FILE_NAME, LIST} and place == archive.resolve():
            _replace_small(archive, files, read)  # no other file is copied
            return
        with private_directory(place.parent) as beside:
            rewrite = _rewrite_folder if archive.is_dir() else _rewrite_zip if is_zip(archive) else _rewrite_tar
            rewrite(archive, files, beside / "written")
            shutil.copymode(place if place.exists() else archive, beside / "written")
            _check_unchanged(archive, read)
            replace_atomically(beside / "written", place)
    except OSError as error:
        raise PackagingError(describe_file_error(error, destination)) from error


def _check_unchanged(archive: Path, read: bytes) -> None:
    """Refuse to replace an archive that another command has written meanwhile."""
    if ArchiveReader(archive).file_list() != read:
        raise PackagingError(f"{archive} was changed while it was used, and is left as it is: run the command again")


def _replace_small(folder: Path, files: Mapping[str, Path], read: bytes) -> None:
    with private_directory(_beside(folder.resolve())) as beside:
        for name, file in files.items():
            shutil.copyfile(file, beside / name)
            shutil.copyfile(folder / name, beside / f"{name}.before")
        _check_unchanged(folder, read)
        try:
            for name in files:
                replace_atomically(beside / name, folder / name)
        except BaseException:  # also a signal
            _put_back(folder, files, beside)
            raise


def _beside(folder: Path) -> Path:
    """Return the parent, as a killed process leaves files; the folder itself, if none can be moved from there."""
    parent = folder.parent
    return parent if os.access(parent, os.W_OK) and parent.stat().st_dev == folder.stat().st_dev else folder


def _put_back(folder: Path, names: Iterable[str], beside: Path) -> None:
    # All or none: the list has the digest of the manifest.
    try:
        for name in names:
            os.replace(beside / f"{name}.before", folder / name)  # noqa: PTH105 - as in `replace_atomically`
    except OSError as error:
        raise PackagingError(
            f"{folder} is half written, and cannot be put back ({describe_file_error(error)}): package the model again"
        ) from error


def _rewrite_folder(archive: Path, files: Mapping[str, Path], written: Path) -> None:
    shutil.copytree(archive, written, symlinks=True)
    for name, file in files.items():
        (written / name).unlink()  # the link itself, not its target
        shutil.copyfile(file, written / name)


def _rewrite_zip(archive: Path, files: Mapping[str, Path], written: Path) -> None:
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(written, "w") as new:
        for entry in old.infolist():
            kept = copy.copy(entry)  # writing changes its offset
            kept.extra = b""  # of a large file its sizes, which are written anew
            replaced = files.get(entry.filename)
            if replaced is not None:
                kept.file_size = replaced.stat().st_size
            elif entry.is_dir():
                new.writestr(kept, b"")
                continue
            with replaced.open("rb") if replaced else old.open(entry) as source, new.open(kept, "w") as target:
                shutil.copyfileobj(source, target)


def _rewrite_tar(archive: Path, files: Mapping[str, Path], written: Path) -> None:
    with tarfile.open(archive) as old, tarfile.open(written, "w:gz") as new:
        for entry in old:
            replaced = files.get(entry.name.partition("/")[2])
            if replaced is None:
                new.addfile(entry, old.extractfile(entry))
            else:
                entry.size = replaced.stat().st_size
                with replaced.open("rb") as source:
                    new.addfile(entry, source)


def publish(flags: model_archiver.Flags, tree: Path, manifest: str) -> Path:
    """List the files of `tree`, archive it in the format of the flags, and move the archive to its path.

    Returns that path. It is written beside its destination first, in a hidden folder, and read back: within one file
    system a move is one step.

    Raises `PackagingError`: it cannot be written there, or an archive is there by now and --force was not given.
    """
    destination = model_archiver.check_destination(flags)
    try:
        write_list(tree, manifest)
        with private_directory(destination.parent) as beside:
            archive = model_archiver.write_archive(flags, tree, manifest, beside)
            try:
                check_files(archive)  # the archiver leaves out a folder that it cannot read, without an error
            except ArchiveError as error:
                raise OSError(errno.EIO, f"the archive is not as it was written ({error})", str(archive)) from error
            model_archiver.check_destination(flags, quiet=True)  # another packaging may have ended since
            place = destination.resolve()  # a link stays
            if place.exists():
                shutil.copymode(place, archive)
            replace_atomically(archive, place)
    except OSError as error:
        raise PackagingError(describe_file_error(error, destination)) from error
    return destination
