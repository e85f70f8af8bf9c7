"""Private working directories, deleted afterwards in every case."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".neuron-lstm-private-"
_log = logging.getLogger(__name__)


@contextmanager
def private_directory(parent: Path | None = None) -> Iterator[Path]:
    """Create a directory for this user alone, deleted at the end; by default among temporary files.

    A fork of this process leaves it to its parent. The process holds a lock on it. Directories beside it without a lock
    are those of processes that were killed: they are deleted first.
    """
    within = Path(tempfile.gettempdir() if parent is None else parent).resolve()
    _delete_abandoned(within)
    path, lock = _make_locked(within)
    owner = os.getpid()
    try:
        yield path
    finally:
        if os.getpid() == owner:
            _delete(path)
        if lock is not None:
            os.close(lock)


def _make_locked(within: Path) -> tuple[Path, int | None]:
    """Make a directory, and return it with the descriptor that holds its lock; None on a file system without locks."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=within))
        try:
            if (lock := _lock(path)) is not None:
                return path, lock
        except FileNotFoundError:
            continue  # another process deleted it before it was locked
        except OSError:
            _delete(path)
            return Path(tempfile.mkdtemp(prefix=".neuron-lstm-unlocked-", dir=within)), None  # never taken as abandoned


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a directory, or None if another process holds it.

    Raises `FileNotFoundError`: the directory is gone.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.stat()
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _delete_abandoned(within: Path) -> None:
    for path in within.glob(f"{_PREFIX}*"):
        # Another user's, a link, or deleted by another process at this moment.
        with suppress(OSError):
            if path.lstat().st_uid == os.geteuid() and (lock := _lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _delete(path: Path) -> None:
    for _ in range(2):  # a disk may fail once
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        _log.warning("%s cannot be deleted: delete it yourself", path)
