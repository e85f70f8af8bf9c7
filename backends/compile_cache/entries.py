"""Entries of the cache: a folder of files for each key, with the digest of each file.

An entry is written to a temporary folder and renamed into its place, so that it is there whole or not at all, also
where two processes write it at once. The digest of each file is compared whenever the entry is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

LIMIT = 2 * 2**30
"""Bytes of all entries; beyond it, the least recently used entries are deleted."""

_DIGESTS = "digests.json"
_FILES = "files"
_UNFINISHED = ".new-"
_ABANDONED_S = 3600.0


class _DamagedEntry(Exception):
    """An entry that is not as it was written."""


def fetch(folder: Path, key: str, target: Path) -> bool:
    """Copy the files of an entry into an empty directory; returns whether there is such an entry.

    A damaged entry is deleted, and `target` is left empty.

    Raises:
        OSError: `target` cannot be written.
    """
    entry = folder / key
    try:
        files = dict(_checked_files(entry))
    except FileNotFoundError:
        return False
    except (_DamagedEntry, OSError):
        _delete(entry)
        return False
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    _mark_used(entry)
    return True


def keep(folder: Path, key: str, source: Path, limit: int = LIMIT) -> None:
    """Add a directory's files as an entry, unless there is one.

    Entries beyond `limit` bytes are deleted, the least recently used first. A failure of the disk leaves
    no entry and is not raised.
    """
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    except OSError:
        return
    try:
        _write(source, unfinished)
        unfinished.rename(folder / key)
    except OSError:  # of the disk, or another process has added the entry
        _delete(unfinished)
    _shrink(folder, limit)


def _write(source: Path, entry: Path) -> None:
    digests = {}
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        name, content = file.relative_to(source).as_posix(), file.read_bytes()
        copy = entry / _FILES / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        digests[name] = hashlib.sha256(content).hexdigest()
    (entry / _DIGESTS).write_text(json.dumps(digests), encoding="utf-8")


def _checked_files(entry: Path) -> Iterator[tuple[str, bytes]]:
    """The files of an entry with their content; what is compared is what is used.

    Raises:
        FileNotFoundError: there is no entry of this key.
        _DamagedEntry: a file is missing, changed, unlisted or a link.
    """
    if entry.is_symlink():
        raise _DamagedEntry
    entry.lstat()
    digests = _read_digests(entry / _DIGESTS)
    present = {path.relative_to(entry / _FILES).as_posix() for path in (entry / _FILES).rglob("*") if not path.is_dir()}
    if present != digests.keys():
        raise _DamagedEntry
    for name, digest in digests.items():
        content = _read(entry / _FILES / name)
        if hashlib.sha256(content).hexdigest() != digest:
            raise _DamagedEntry
        yield name, content


def _read_digests(file: Path) -> Mapping[str, str]:
    try:
        digests = json.loads(_read(file))
    except (OSError, ValueError) as error:
        raise _DamagedEntry from error
    if not isinstance(digests, dict):
        raise _DamagedEntry
    return digests


def _read(file: Path) -> bytes:
    """Read a file that is no link."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
        return opened.read()


def _mark_used(entry: Path) -> None:
    try:
        os.utime(entry)
    except OSError:  # another process has deleted it, or a disk that is now read-only
        return


def _shrink(folder: Path, limit: int) -> None:
    """Delete the entries beyond the limit, and what killed processes left unfinished."""
    sizes: list[tuple[float, int, Path]] = []
    for entry in folder.glob("*"):  # of a folder that is gone, none
        try:
            used = entry.lstat().st_mtime
            size = sum(file.lstat().st_size for file in entry.rglob("*"))
        except OSError:  # another process deletes it
            continue
        if not entry.name.startswith(_UNFINISHED):
            sizes.append((used, size, entry))
        elif time.time() - used > _ABANDONED_S:
            _delete(entry)
    total = sum(size for _, size, _ in sizes)
    for _, size, entry in sorted(sizes):
        if total <= limit:
            return
        _delete(entry)
        total -= size


def _delete(entry: Path) -> None:
    """Delete a folder in one step for other processes, or a link or file in its place."""
    try:
        doomed = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=entry.parent))
        entry.rename(doomed / entry.name)
    except OSError:  # another process deleted it, or the disk is read-only
        return
    shutil.rmtree(doomed, ignore_errors=True)
