"""Database file of the store on disk, opened for several writing processes. Only its owner can read it."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from ..store import StoreFullError, StoreUnavailableError
from .expiry import EXPIRY_SCHEMA

_COMPANIONS = ("-wal", "-shm")
_SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE session (
    key BLOB PRIMARY KEY NOT NULL,
    revision INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    last REAL NOT NULL,
    size INTEGER NOT NULL,
    record BLOB NOT NULL
);
CREATE INDEX unconfirmed_by_last ON session (last) WHERE revision < 0 AND ended = 0;
CREATE TABLE owner (key BLOB PRIMARY KEY NOT NULL, client BLOB NOT NULL);
CREATE INDEX owner_by_client ON owner (client);
CREATE TRIGGER session_has_gone AFTER DELETE ON session BEGIN DELETE FROM owner WHERE key = old.key; END;
CREATE TABLE tally (
    open INTEGER NOT NULL, bytes INTEGER NOT NULL, time REAL NOT NULL, shared REAL, uncounted REAL NOT NULL
);
"""
"""Records, the client of each session, and totals with the store's time.

Unconfirmed sessions have a revision below 0.
"""
_PAGE_BYTES = 8192
"""A record of 4.5 KB is one page of the log, in place of two of 4 KB and a fifth of one that says where they are."""
_CACHE_KIBIBYTES = 32 * 1024
_WAL_LIMIT_BYTES = 128 * 1024 * 1024
"""Size to which a larger write-ahead log is cut when it is reset."""
_CHECKPOINT_PAGES = 4 * 8192
"""Pages of the log from which on a commit copies them itself: `checkpoints.py` has fallen behind."""
WRONG_VALUES = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors of values that no store writes. SQLite checks the structure of a damaged page, and not what its rows hold."""
_LEAST_FREE_BYTES = 1024 * 1024
"""Free space below which a file system counts as full."""


FileIdentity = tuple[int, int]
"""Identity of the file at a path: its device and its inode."""


def store_file(directory: Path, model: str) -> Path:
    """Return the path of one model's sessions.

    >>> store_file(Path("sessions"), "speech/en").name
    'speech%2Fen.sessions'
    """
    return directory / f"{quote(model, safe='')}.sessions"


def file_identity(file: Path) -> FileIdentity | None:
    """Return the identity of `file` now; None where there is no file. Raises `OSError`: the path cannot be examined."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def open_database(file: Path, busy_seconds: float) -> tuple[sqlite3.Connection, FileIdentity]:
    """Open `file`, or create it, and return the connection and the identity of the file.

    Raises `OSError`, `sqlite3.Error`: it cannot be opened.
    Raises `StoreUnavailableError`: its directory or content forbids it.
    """
    _make_directory(file.parent)
    with _alone(file, busy_seconds):
        identity = _make_file(file)
        connection = _connect(file, busy_seconds)
        try:
            _prepare(connection, file)
        except BaseException:
            connection.close()
            raise
    return connection, identity


def open_for_checkpoints(file: Path, identity: FileIdentity, busy_seconds: float) -> sqlite3.Connection:
    """Open another connection to the `file` that `open_database` opened, for checkpoints.

    Raises `OSError`, `sqlite3.Error`: it cannot be opened, or is another file by now.
    """
    # The file must not be replaced here: the log of one file must not be copied to another.
    with _alone(file, busy_seconds):
        if file_identity(file) != identity:
            raise FileNotFoundError(errno.ENOENT, "the session store was moved or deleted", str(file))
        connection = _connect(file, busy_seconds)
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the log
        except BaseException:
            connection.close()
            raise
    return connection


def _connect(file: Path, busy_seconds: float) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=busy_seconds, isolation_level=None, check_same_thread=False)


def store_error(file: Path, error: Exception, busy_seconds: float) -> StoreUnavailableError:
    """Convert an error of the system or of SQLite to one that says what an operator can do."""
    what = f"the session store {file} cannot be used: {error}"
    if _is_full(file, error):
        return StoreFullError(f"{what}; make room on its disk")
    disk_fails = StoreUnavailableError(f"{what}; look for errors of its disk in the system's log")
    must_write = StoreUnavailableError(f"{what}; the server must be able to write to it and to its folder")
    if isinstance(error, OSError):  # its text contains the path, so it is not searched for words
        return disk_fails if error.errno == errno.EIO else must_write
    text = str(error)
    if "locked" in text:
        return StoreUnavailableError(f"{what}; another process has held it for {busy_seconds:g} seconds")
    if "malformed" in text or "not a database" in text:
        return damaged_store(file, error)
    if "disk I/O error" in text:
        return disk_fails
    return must_write if "readonly" in text or "unable to open" in text else StoreUnavailableError(what)


def damaged_store(file: Path, error: Exception) -> StoreUnavailableError:
    """Convert an error of a file whose content is damaged to one that says what an operator can do."""
    companions = " and ".join(f"{file.name}{suffix}" for suffix in _COMPANIONS)
    cause = str(error) if isinstance(error, sqlite3.Error) else f"it holds wrong values ({error})"
    # SQLite says "malformed" where the disk fails to read, too: then the sessions are there at the next request.
    return StoreUnavailableError(
        f"the session store {file} cannot be used: {cause}; if the next requests get this too, move it away, with "
        f"{companions} if they are there: a new one is created, without the old sessions"
    )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        # A user who can write to it can replace the file.
        found = directory.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StoreUnavailableError(
                f"sessions are not stored in {directory}, where other users can write: name a new folder in it, or "
                f"remove the permission with `chmod go-w`"
            ) from None
        return
    directory.chmod(0o700)


@contextmanager
def _alone(file: Path, busy_seconds: float) -> Iterator[None]:
    # Files of a folder are created and prepared by one process at a time.
    descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + busy_seconds
        while not _is_locked(descriptor):
            if time.monotonic() > deadline:
                if file.exists():  # whoever can read the folder can hold its lock without an end
                    break
                raise sqlite3.OperationalError("its folder is locked")
            time.sleep(0.001)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_file(file: Path) -> FileIdentity:
    # SQLite gives the companion files the same mode and owner.
    if (identity := file_identity(file)) is None:
        # Companions of a deleted file would be taken for those of the new one.
        for suffix in _COMPANIONS:
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        identity = file_identity(file)
        assert identity is not None
    # By name: opening and closing the file would release the locks that this process may hold on it.
    mode = file.lstat().st_mode
    if not stat.S_ISREG(mode):
        raise StoreUnavailableError(f"the session store {file} is not a regular file; move it away")
    if stat.S_IMODE(mode) != 0o600:
        file.chmod(0o600)
    for suffix in _COMPANIONS:  # of a backup, they may have another mode
        with suppress(FileNotFoundError):
            file.with_name(file.name + suffix).chmod(0o600)
    return identity


def _prepare(connection: sqlite3.Connection, file: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version not in (0, _SCHEMA_VERSION) or (version == 0 and tables):
        raise StoreUnavailableError(
            f"the session store {file} was written by another version of this software; move it away: a new one is "
            f"made, without the old sessions"
        )
    # A crash of a process loses nothing: committed records are in the log, which the system holds. Only a crash of the
    # system can lose the latest ones, since the log reaches the disk with the next checkpoint.
    connection.executescript(
        f"PRAGMA page_size = {_PAGE_BYTES}; PRAGMA journal_mode = WAL; "
        f"PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}; "
        f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}; "
        f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}; PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF;"
    )
    if version == 0:
        # The wall clock sets the initial time only; `sessions.store_time` says how it passes.
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {EXPIRY_SCHEMA}")
        connection.execute("INSERT INTO tally VALUES (0, 0, ?, NULL, 0)", (time.time(),))
        connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        connection.execute("COMMIT")


def _is_full(file: Path, error: Exception) -> bool:
    # SQLite reports a full disk, except where a companion file could not be made or grow.
    text = "" if isinstance(error, OSError) else str(error)
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "database or disk is full" in text:
        return True
    if isinstance(error, OSError) or "disk I/O error" in text or "unable to open" in text:
        try:
            found = os.statvfs(file.parent)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < _LEAST_FREE_BYTES
    return False
