"""Store of one model's sessions in one file, shared by all workers of a host.

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
"""Records removed at a time; other workers wait meanwhile."""
_SWEEP_SECONDS = 5.0
"""Interval between two removals of expired records."""


class SqliteStore:
    """Store of `model` in `directory`; implements `sessions.store.Store`.

    The first call opens the file. The next call opens it again after an error, and after the file was moved or deleted:
    the server need not be restarted.
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
        """Return the record of each session, in order; None where there is none.

        Raises:
            StoreUnavailableError: nothing can be read.
        """
        now = self._clock()
        with self._transaction(_begin_read) as connection:
            return [self._found(connection, id, now) for id in ids]  # noqa: A001 - the standard term

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Make each change on its own. The ids of one call are different.

        Raises:
            StoreUnavailableError: no change was made.
        """
        now = self._clock()
        with self._transaction(_begin_write) as connection:
            before = usage = StoreUsage(*connection.execute("SELECT open, bytes FROM tally").fetchone())
            outcomes = []
            for change in changes:
                outcome, usage = self._change(connection, change, usage, now)
                outcomes.append(outcome)
            if sweeps := abs(now - self._swept) >= _SWEEP_SECONDS:
                usage = self._sweep(connection, usage, now)
            if usage != before:
                connection.execute("UPDATE tally SET open = ?, bytes = ?", (usage.open, usage.bytes))
        # These change only after the commit.
        self._expired += usage.expired
        self._swept = now if sweeps else self._swept
        return outcomes

    def totals(self) -> StoreTotals:
        """Count open sessions and bytes.

        Raises:
            StoreUnavailableError: nothing can be read.
        """
        now = self._clock()
        idle_since = now - self._limits.idle_seconds
        with self._transaction(_begin_read) as connection:
            count, size = connection.execute("SELECT open, bytes FROM tally").fetchone()
            (expired,) = connection.execute(
                "SELECT count(*) FROM session WHERE ended = 0 AND last < ?", (idle_since,)
            ).fetchone()
            (oldest,) = connection.execute(
                "SELECT min(last) FROM session WHERE ended = 0 AND last >= ?", (idle_since,)
            ).fetchone()
        return StoreTotals(count - expired, size, None if oldest is None else max(0.0, now - oldest))

    def expired(self) -> int:
        """Return the number of idle sessions that this object has removed since the last call."""
        expired, self._expired = self._expired, 0
        return expired

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _transaction(self, begin: Callable[[sqlite3.Connection], object]) -> Iterator[sqlite3.Connection]:
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
        # The file is opened again where another one has replaced it.
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

    def _found(self, connection: sqlite3.Connection, id: str, now: float) -> StoredRecord | None:  # noqa: A002 - the standard term
        row = connection.execute(
            "SELECT revision, ended, last, size, record FROM session WHERE key = ?", (store_key(id, self._model),)
        ).fetchone()
        if row is None or is_expired(RecordInfo(*row[:4]), self._limits, now):
            return None
        return StoredRecord(row[4], row[0])

    def _change(
        self, connection: sqlite3.Connection, change: RecordUpdate, usage: StoreUsage, now: float
    ) -> tuple[WriteOutcome, StoreUsage]:
        key = store_key(change.id, self._model)
        while True:
            row = connection.execute("SELECT revision, ended, last, size FROM session WHERE key = ?", (key,)).fetchone()
            outcome, after = admit(change, row and RecordInfo(*row), usage, self._limits, now)
            if isinstance(outcome, Written):
                connection.execute(
                    "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
                    "(revision, ended, last, size, record) = "
                    "(excluded.revision, excluded.ended, excluded.last, excluded.size, excluded.record)",
                    # Unique, even among removed records.
                    (key, randbits(63), change.ended, now, len(change.record), change.record),
                )
            if not isinstance(outcome, LimitExceeded):
                return outcome, after
            swept = self._sweep(connection, usage, now)
            if swept == usage:
                return LimitExceeded(outcome.limit, self._until_room(connection, now)), usage
            usage = swept

    def _sweep(self, connection: sqlite3.Connection, usage: StoreUsage, now: float) -> StoreUsage:
        # The oldest expired records first, and not all at a time: other workers wait meanwhile.
        for ended, seconds in ((0, self._limits.idle_seconds), (1, self._limits.retry_seconds)):
            rows = connection.execute(
                "SELECT rowid, size FROM session WHERE ended = ? AND last < ? ORDER BY last LIMIT ?",
                (ended, now - seconds, _SWEPT_ROWS),
            ).fetchall()
            connection.executemany("DELETE FROM session WHERE rowid = ?", [(rowid,) for rowid, _ in rows])
            size = usage.bytes - sum(size for _, size in rows)
            usage = (
                StoreUsage(usage.open, size, usage.expired)
                if ended
                else StoreUsage(usage.open - len(rows), size, usage.expired + len(rows))
            )
        return usage

    def _until_room(self, connection: sqlite3.Connection, now: float) -> float:
        # Seconds until the next session expires, unless it gets a request until then.
        (oldest,) = connection.execute("SELECT min(last) FROM session WHERE ended = 0").fetchone()
        return self._limits.idle_seconds - (0.0 if oldest is None else max(0.0, now - oldest))


def _begin_read(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")


def _begin_write(connection: sqlite3.Connection) -> None:
    """Wait for other writers, who take a millisecond: SQLite's own waiting soon sleeps for 100.

    Of four workers that wrote 32 records again and again, the slowest waited 40 ms, and 330 ms with SQLite's waiting.
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
