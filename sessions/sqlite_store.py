"""The sessions of one model in one file, shared by all workers of a host.

An SQLite database in write-ahead mode. A crash of any process loses nothing that was written; a crash of the system
may lose the last moments before it, and no more.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import randbits
from threading import Lock

from .ids import store_key
from .settings import Limits
from .sqlite_file import FileIdentity, file_identity, open_database, store_error, store_file
from .store import (
    LimitExceeded,
    RecordInfo,
    RecordUpdate,
    StoredRecord,
    StoreTotals,
    StoreUsage,
    WriteOutcome,
    Written,
    admit,
    is_expired,
)

_BUSY_SECONDS = 5.0
_SWEPT_ROWS = 200
"""That are removed in one go: others wait meanwhile."""
_SWEEP_SECONDS = 5.0
"""Between two looks for what has lapsed."""


class SqliteStore:
    """The store of `model` in `directory`, as `sessions.store.Store` promises.

    Nothing is opened before the first call. After an error the file is opened anew by the next call, and so it is
    after it was moved away or deleted: the server need not be restarted.
    """

    def __init__(self, directory: Path, model: str, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self.file = store_file(directory, model)
        self._model = model
        self._limits = limits
        self._clock = clock
        self._lock = Lock()
        self._opened: tuple[sqlite3.Connection, FileIdentity] | None = None
        self._swept = 0.0
        self._expired = 0

    def read(self, ids: Sequence[str]) -> list[StoredRecord | None]:
        """The record of each session, in order; None where there is none.

        Raises:
            StoreUnavailable: nothing can be read.
        """
        now = self._clock()
        with self._transaction(_begin_read) as connection:
            return [self._found(connection, id, now) for id in ids]  # noqa: A001 - what it is

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Make each change on its own. The ids of one call are different.

        Raises:
            StoreUnavailable: no change was made.
        """
        now = self._clock()
        with self._transaction(_begin_write) as connection:
            before = tally = StoreUsage(*connection.execute("SELECT open, bytes FROM tally").fetchone())
            outcomes = []
            for change in changes:
                outcome, tally = self._change(connection, change, tally, now)
                outcomes.append(outcome)
            if sweeps := abs(now - self._swept) >= _SWEEP_SECONDS:
                tally = self._sweep(connection, tally, now)
            if tally != before:
                connection.execute("UPDATE tally SET open = ?, bytes = ?", (tally.open, tally.bytes))
        # Only what is committed has happened.
        self._expired += tally.expired
        self._swept = now if sweeps else self._swept
        return outcomes

    def totals(self) -> StoreTotals:
        """What there is.

        Raises:
            StoreUnavailable: nothing can be read.
        """
        now = self._clock()
        idle_since = now - self._limits.idle_seconds
        with self._transaction(_begin_read) as connection:
            count, size = connection.execute("SELECT open, bytes FROM tally").fetchone()
            (lapsed,) = connection.execute(
                "SELECT count(*) FROM session WHERE ended = 0 AND last < ?", (idle_since,)
            ).fetchone()
            (oldest,) = connection.execute(
                "SELECT min(last) FROM session WHERE ended = 0 AND last >= ?", (idle_since,)
            ).fetchone()
        return StoreTotals(count - lapsed, size, None if oldest is None else max(0.0, now - oldest))

    def expired(self) -> int:
        """How many sessions this object has removed since the last call because they were idle."""
        expired, self._expired = self._expired, 0
        return expired

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _transaction(self, begin: Callable[[sqlite3.Connection], object]) -> Iterator[sqlite3.Connection]:
        """All of it or nothing."""
        with self._lock:
            try:
                connection = self._connection()
                begin(connection)
                yield connection
                connection.execute("COMMIT")
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise store_error(self.file, error, _BUSY_SECONDS) from error
            except BaseException:
                self._disconnect()
                raise

    def _connection(self) -> sqlite3.Connection:
        """What is open, if it is still the file of that name: another one may have been put in its place."""
        if self._opened is not None and self._opened[1] != file_identity(self.file):
            self._disconnect()
        if self._opened is None:
            self._opened = open_database(self.file, _BUSY_SECONDS)
        return self._opened[0]

    def _disconnect(self) -> None:
        if self._opened is not None:
            connection, self._opened = self._opened[0], None
            with suppress(sqlite3.Error):  # it may be closed because it is broken
                connection.close()

    def _found(self, connection: sqlite3.Connection, id: str, now: float) -> StoredRecord | None:  # noqa: A002 - what it is
        row = connection.execute(
            "SELECT revision, ended, last, size, record FROM session WHERE key = ?", (store_key(id, self._model),)
        ).fetchone()
        if row is None or is_expired(RecordInfo(*row[:4]), self._limits, now):
            return None
        return StoredRecord(row[4], row[0])

    def _change(
        self, connection: sqlite3.Connection, change: RecordUpdate, tally: StoreUsage, now: float
    ) -> tuple[WriteOutcome, StoreUsage]:
        key = store_key(change.id, self._model)
        while True:
            row = connection.execute("SELECT revision, ended, last, size FROM session WHERE key = ?", (key,)).fetchone()
            outcome, after = admit(change, row and RecordInfo(*row), tally, self._limits, now)
            if isinstance(outcome, Written):
                connection.execute(
                    "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
                    "(revision, ended, last, size, record) = "
                    "(excluded.revision, excluded.ended, excluded.last, excluded.size, excluded.record)",
                    # Never one that was before, whatever was removed in between.
                    (key, randbits(63), change.ended, now, len(change.record), change.record),
                )
            if not isinstance(outcome, LimitExceeded):
                return outcome, after
            swept = self._sweep(connection, tally, now)
            if swept == tally:
                return LimitExceeded(outcome.limit, self._until_room(connection, now)), tally
            tally = swept

    def _sweep(self, connection: sqlite3.Connection, tally: StoreUsage, now: float) -> StoreUsage:
        """Remove some of what has lapsed, the oldest first."""
        for ended, seconds in ((0, self._limits.idle_seconds), (1, self._limits.retry_seconds)):
            rows = connection.execute(
                "SELECT rowid, size FROM session WHERE ended = ? AND last < ? ORDER BY last LIMIT ?",
                (ended, now - seconds, _SWEPT_ROWS),
            ).fetchall()
            connection.executemany("DELETE FROM session WHERE rowid = ?", [(rowid,) for rowid, _ in rows])
            size = tally.bytes - sum(size for _, size in rows)
            tally = (
                StoreUsage(tally.open, size, tally.expired)
                if ended
                else StoreUsage(tally.open - len(rows), size, tally.expired + len(rows))
            )
        return tally

    def _until_room(self, connection: sqlite3.Connection, now: float) -> float:
        """Seconds until the next session is over, if it gets no piece until then."""
        (oldest,) = connection.execute("SELECT min(last) FROM session WHERE ended = 0").fetchone()
        return self._limits.idle_seconds - (0.0 if oldest is None else max(0.0, now - oldest))


def _begin_read(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")


def _begin_write(connection: sqlite3.Connection) -> None:
    """Wait for those who write now, as they take a millisecond: SQLite's own waiting soon sleeps for 100.

    Of four workers that wrote 32 records again and again, the unluckiest waited for 40 ms so, and for 330 otherwise.
    """
    deadline = time.monotonic() + _BUSY_SECONDS
    connection.execute("PRAGMA busy_timeout = 0")
    while not _has_begun(connection):
        if time.monotonic() > deadline:
            raise sqlite3.OperationalError("database is locked")
        time.sleep(0.0005)
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * _BUSY_SECONDS)}")


def _has_begun(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return False
        raise
    return True
