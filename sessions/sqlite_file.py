"""The file of a store on disk: made so that nobody else can read it, and opened so that many processes can write."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from .store import StoreFullError, StoreUnavailableError

_SUFFIX = ".sessions"
_COMPANIONS = ("-wal", "-shm")
_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE session (
    key BLOB PRIMARY KEY NOT NULL,
    revision INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    last REAL NOT NULL,
    size INTEGER NOT NULL,
    record BLOB NOT NULL
);
CREATE INDEX session_by_last ON session (ended, last);
CREATE TABLE tally (open INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO tally VALUES (0, 0);
"""
_PAGE_BYTES = 4096
"""Records of 6 KB are written no faster in larger pages, and take a third more room in them."""
_CACHE_KIBIBYTES = 8192
_WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""A log that had to grow beyond this is cut to it when it is begun again."""
_LEAST_FREE_BYTES = 1024 * 1024
"""With less than this a file system counts as full."""


class FileIdentity(NamedTuple):
    """Which file a path leads to."""

    device: int
    inode: int


def store_file(directory: Path, model: str) -> Path:
    """The file of one model's sessions.

    >>> store_file(Path("sessions"), "speech/en").name
    'speech%2Fen.sessions'
    """
    return directory / f"{quote(model, safe='')}{_SUFFIX}"


def stored_models(directory: Path) -> list[str]:
    """The models that have a file in `directory`, sorted; none where there is no such directory."""
    return sorted(unquote(path.name.removesuffix(_SUFFIX)) for path in directory.glob(f"*{_SUFFIX}"))


def file_identity(file: Path) -> FileIdentity | None:
    """What `file` is now; None where there is nothing.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        found = file.lstat()
    except FileNotFoundError:
        return None
    return FileIdentity(found.st_dev, found.st_ino)


def open_database(file: Path, busy_seconds: float) -> tuple[sqlite3.Connection, FileIdentity]:
    """A connection to `file`, which is made where there is none, and which file that was.

    Raises:
        OSError, sqlite3.Error: it cannot be opened.
        StoreUnavailable: it must not be.
    """
    _make_directory(file.parent)
    with _alone(file.parent, busy_seconds):
        identity = _make_file(file)
        connection = sqlite3.connect(file, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, file)
        except BaseException:
            connection.close()
            raise
    return connection, identity


def store_error(file: Path, error: Exception, busy_seconds: float) -> StoreUnavailableError:
    """What an error of the system or of SQLite means, and what can be done about it."""
    what = f"the session store {file} cannot be used: {error}"
    if _is_full(file, error):
        return StoreFullError(f"{what}; make room on its disk")
    text = str(error)
    if "locked" in text:
        return StoreUnavailableError(f"{what}; another process has held it for {busy_seconds:g} seconds")
    if "malformed" in text or "not a database" in text:
        companions = " and ".join(f"{file.name}{suffix}" for suffix in _COMPANIONS)
        return StoreUnavailableError(
            f"{what}; move it away, with {companions} if they are there: a new one is made, without the old sessions"
        )
    if isinstance(error, OSError) or "readonly" in text or "unable to open" in text:
        return StoreUnavailableError(f"{what}; the server must be able to write to it and to its folder")
    return StoreUnavailableError(what)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        # Whoever can write to it can put a file of their own in the place of ours.
        if directory.stat().st_mode & stat.S_IWOTH:
            raise StoreUnavailableError(
                f"sessions are not kept in {directory}, where every user can write: name a folder in it that is not "
                f"there yet, or take the right away with `chmod o-w`"
            ) from None
        return
    directory.chmod(0o700)


@contextmanager
def _alone(directory: Path, busy_seconds: float) -> Iterator[None]:
    """Files in `directory` are made and prepared by one process at a time."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + busy_seconds
        while not _is_locked(descriptor):
            if time.monotonic() > deadline:
                raise sqlite3.OperationalError("its folder is locked")
            time.sleep(0.001)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_file(file: Path) -> FileIdentity:
    """Make `file` where there is none. SQLite gives its companions the same mode and owner."""
    if (identity := file_identity(file)) is None:
        # What belongs to a file that was deleted would be taken for this one's.
        for suffix in _COMPANIONS:
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        identity = file_identity(file)
        assert identity is not None
    # By its name: to open and close it would give up the locks that this process may hold on it.
    mode = file.lstat().st_mode
    if not stat.S_ISREG(mode):
        raise StoreUnavailableError(f"the session store {file} is no regular file; move it away")
    if stat.S_IMODE(mode) != 0o600:
        file.chmod(0o600)
    return identity


def _prepare(connection: sqlite3.Connection, file: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version not in (0, _SCHEMA_VERSION) or (version == 0 and tables):
        raise StoreUnavailableError(
            f"the session store {file} was written by another version of this software; move it away: a new one is "
            f"made, without the old sessions"
        )
    # A crash of a process loses nothing: what is committed is in the log, which the system holds. Only a crash of the
    # system can lose the last moments, for the log reaches the disk with the next checkpoint.
    connection.executescript(
        f"PRAGMA page_size = {_PAGE_BYTES}; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; "
        f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}; PRAGMA cache_size = -{_CACHE_KIBIBYTES}; "
        f"PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF;"
    )
    if version == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")


def _is_full(file: Path, error: Exception) -> bool:
    """SQLite says so itself, except where it was the index of its log that could not grow."""
    if isinstance(error, OSError) or "disk I/O error" in str(error):
        try:
            found = os.statvfs(file.parent)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < _LEAST_FREE_BYTES
    return "full" in str(error)
