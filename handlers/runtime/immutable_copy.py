"""A copy of a file that cannot change: weights are mapped from it, and workers share its memory.

A mapped file that is written in place changes answers silently, and one that is cut short ends the process with SIGBUS.
So the content is copied to a file in memory, for which the kernel then refuses every write and every change of size
(memfd_create(2), F_ADD_SEALS in fcntl(2)). The owner of the file on disk does not matter. Each worker is a process of
its own. A worker that finds such a copy open in another process of its user opens that copy, so that the pages are in
memory once. The file on disk is checked all the same: what a host accepts must not depend on what else runs there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_BLOCK = 1 << 20


class DigestMismatch(Exception):
    """A file whose content is not that of the given digest."""


class ImmutableCopy:
    """An open copy, of which `path` names the content while this object lives."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.path = path
        weakref.finalize(self, file.close)


def immutable_copy(path: Path, digest: str) -> ImmutableCopy:
    """Return a copy of the file with this sha256, shared with other processes of this user.

    Where the system has no files in memory, it is a temporary file that only this user can write.

    Raises:
        DigestMismatch: the file has another sha256.
        OSError: it cannot be read, or there is no memory for the copy.
    """
    with path.open("rb") as source:
        if not hasattr(os, "memfd_create"):
            return _temporary_copy(source, digest)
        # Workers start together: the first one copies, and the others find its copy.
        with _hold_lock(source):
            return _in_memory(_find_unchanged_copy(source, digest) or _make_copy(source, digest))


def _in_memory(file: IO[bytes]) -> ImmutableCopy:
    return ImmutableCopy(file, Path(f"/proc/self/fd/{file.fileno()}"))


def _find_unchanged_copy(source: IO[bytes], digest: str) -> IO[bytes] | None:
    """A copy that another process of this user has open, if the source is the same file still."""
    copy = _find_copy(digest)
    if copy is not None and _digest(source) != digest:
        copy.close()
        raise DigestMismatch
    return copy


@contextmanager
def _hold_lock(file: IO[bytes]) -> Iterator[None]:
    """Hold the lock of a file, where the file system has locks; else each worker has a copy."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)
    yield  # the lock ends when the file is closed


def _make_copy(source: IO[bytes], digest: str) -> IO[bytes]:
    descriptor = os.memfd_create(_name(digest), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - it has no path
        shutil.copyfileobj(source, file, _BLOCK)
        file.flush()
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _seals())
        copy = Path(f"/proc/self/fd/{descriptor}").open("rb")  # noqa: SIM115 - the caller's
    return _check_copy(copy, digest)


def _temporary_copy(source: IO[bytes], digest: str) -> ImmutableCopy:
    file = tempfile.NamedTemporaryFile(prefix="neuron_lstm-")  # noqa: SIM115 - the caller's
    shutil.copyfileobj(source, file, _BLOCK)
    file.flush()
    return ImmutableCopy(_check_copy(file, digest), Path(file.name))


def _find_copy(digest: str) -> IO[bytes] | None:
    """A copy that another process of this user has open, after its content was checked."""
    link = f"/memfd:{_name(digest)} (deleted)"
    for descriptor in _open_descriptors():
        with suppress(OSError, DigestMismatch):  # it was closed, or has other content
            if str(descriptor.readlink()) == link:
                file = descriptor.open("rb")
                if _is_immutable(file):
                    return _check_copy(file, digest)
                file.close()
    return None


def _open_descriptors() -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is another user's
            yield from (process / "fd").iterdir()


def _is_immutable(file: IO[bytes]) -> bool:
    return fcntl.fcntl(file, fcntl.F_GET_SEALS) & _seals() == _seals()


def _seals() -> int:
    """Return the seals that forbid writes, changes of size and further seals."""
    return fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _check_copy(file: IO[bytes], digest: str) -> IO[bytes]:
    """Compare the content of a copy that no process changes any more.

    Raises:
        DigestMismatch: it has another sha256; the file is closed.
    """
    if _digest(file) != digest:
        file.close()
        raise DigestMismatch
    return file


def _digest(file: IO[bytes]) -> str:
    found = hashlib.sha256()
    file.seek(0)
    while block := file.read(_BLOCK):
        found.update(block)
    return found.hexdigest()


def _name(digest: str) -> str:
    return f"neuron_lstm-{digest}"
