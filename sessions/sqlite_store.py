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

from .admission import OtherSessions, RecordInfo, StoreUsage, admit, is_expired
from .ids import client_key, store_key
from .settings import Limits
from .sqlite_file import FileIdentity, file_identity, has_much_free, open_database, shrink, store_error, store_file
from .store import LimitExceeded, RecordUpdate, StoredRecord, StoreTotals, WriteOutcome, Written
from .store_time import Reading, SeenTime, StoredTime, current_time, host_clocks

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

    def __init__(self, directory: Path, model: str, limits: Limits, clock: Callable[[], Reading] = host_clocks) -> None:
        self.file = store_file(directory, model)
        self._model = model
        self._limits = limits
        self._clock = clock
        self._lock = Lock()
        self._opened: tuple[sqlite3.Connection, FileIdentity] | None = None
        self._seen: SeenTime | None = None
        self._swept: float | None = None
        self._expired = 0

    def read(self, ids: Sequence[str]) -> list[StoredRecord | None]:
        """Return the record of each session, in order; None where there is none.

        Raises:
            StoreUnavailableError: nothing can be read.
        """
        with self._transaction(_begin_read) as connection:
            now, _ = self._look(*connection.execute("SELECT time, shared FROM tally").fetchone())
            return [self._found(connection, id, now) for id in ids]  # noqa: A001 - the standard term

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Make each change on its own. The ids of one call are different.

        Raises:
            StoreUnavailableError: no change was made.
        """
        with self._transaction(_begin_write) as connection:
            count, size, stored, shared = connection.execute("SELECT open, bytes, time, shared FROM tally").fetchone()
            now, reading = self._look(stored, shared)
            before = usage = StoreUsage(count, size)
            outcomes = []
            for change in changes:
                outcome, usage = self._change(connection, change, usage, now)
                outcomes.append(outcome)
            if sweeps := self._swept is None or now - self._swept >= _SWEEP_SECONDS:
                usage = self._sweep(connection, usage, now)
            shrinks = sweeps and has_much_free(connection)
            if usage != before or reading.shared != shared:
                connection.execute(
                    "UPDATE tally SET open = ?, bytes = ?, time = ?, shared = ?",
                    (usage.open, usage.bytes, now, reading.shared),
                )
        # These change only after the commit.
        self._expired += usage.expired
        self._swept = now if sweeps else self._swept
        if shrinks:
            self._shrink()
        return outcomes

    def totals(self) -> StoreTotals:
        """Count open sessions and bytes.

        Raises:
            StoreUnavailableError: nothing can be read.
        """
        with self._transaction(_begin_read) as connection:
            count, size, stored, shared = connection.execute("SELECT open, bytes, time, shared FROM tally").fetchone()
            # A report, on which nothing is removed: its user may have begun just now.
            now, reading = self._look(stored, shared)
            now = max(now, stored + (reading.shared - (reading.shared if shared is None else shared)))
            open_since, unconfirmed_since = now - self._limits.idle_seconds, now - self._limits.lifetime
            (expired,) = connection.execute(
                "SELECT count(*) FROM session WHERE ended = 0 AND (last < ? OR (revision < 0 AND last < ?))",
                (open_since, unconfirmed_since),
            ).fetchone()
            (oldest,) = connection.execute(
                "SELECT min(last) FROM session WHERE ended = 0 AND last >= ? AND (revision >= 0 OR last >= ?)",
                (open_since, unconfirmed_since),
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

    def _shrink(self) -> None:
        # What was written stands, and the next sweep tries again: a worker that waits may be more urgent.
        with self._lock:
            if self._opened is not None:
                with suppress(sqlite3.OperationalError):
                    shrink(self._opened[0])

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
            self._seen = self._swept = None  # it may be another file
        return self._opened[0]

    def _disconnect(self) -> None:
        if self._opened is not None:
            connection, self._opened = self._opened[0], None
            with suppress(sqlite3.Error):  # it may be closed because it is broken
                connection.close()

    def _look(self, stored: float, shared: float | None) -> tuple[float, Reading]:
        reading = self._clock()
        written = StoredTime(stored, reading.shared if shared is None else shared)
        now = current_time(written, self._seen, reading)
        self._seen = SeenTime(now, reading.own)
        return now, reading

    def _found(self, connection: sqlite3.Connection, id: str, now: float) -> StoredRecord | None:  # noqa: A002 - the standard term
        row = connection.execute(
            "SELECT revision, ended, last, size, revision < 0, record FROM session WHERE key = ?",
            (store_key(id, self._model),),
        ).fetchone()
        if row is None or is_expired(RecordInfo(*row[:5]), self._limits, now):
            return None
        return StoredRecord(row[5], row[0])

    def _change(
        self, connection: sqlite3.Connection, change: RecordUpdate, usage: StoreUsage, now: float
    ) -> tuple[WriteOutcome, StoreUsage]:
        key = store_key(change.id, self._model)
        while True:
            row = connection.execute(
                "SELECT revision, ended, last, size, revision < 0 FROM session WHERE key = ?", (key,)
            ).fetchone()
            found = row and RecordInfo(*row)
            others = self._others(connection, change, key)
            outcome, after = admit(change, found, usage, self._limits, now, others)
            if isinstance(outcome, Written):
                self._put(connection, change, key, now)
                if change.client is not None or found is None or found.ended or is_expired(found, self._limits, now):
                    self._put_client(connection, change.client, key)
            if not isinstance(outcome, LimitExceeded):
                return outcome, after
            swept = self._sweep(connection, usage, now)
            if swept == usage:
                return LimitExceeded(outcome.limit, self._until_room(connection, now)), usage
            usage = swept

    def _others(self, connection: sqlite3.Connection, change: RecordUpdate, key: bytes) -> OtherSessions:
        unconfirmed = of_client = 0
        if change.unconfirmed:
            (unconfirmed,) = connection.execute(
                "SELECT count(*) FROM session WHERE revision < 0 AND ended = 0 AND key <> ?", (key,)
            ).fetchone()
        if change.client is not None:
            (of_client,) = connection.execute(
                "SELECT count(*) FROM owner JOIN session USING (key) WHERE client = ? AND ended = 0 AND key <> ?",
                (client_key(change.client, self._model), key),
            ).fetchone()
        return OtherSessions(unconfirmed, of_client)

    def _put(self, connection: sqlite3.Connection, change: RecordUpdate, key: bytes, now: float) -> None:
        revision = randbits(63)  # unique, even among removed records
        connection.execute(
            "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
            "(revision, ended, last, size, record) = "
            "(excluded.revision, excluded.ended, excluded.last, excluded.size, excluded.record)",
            (key, ~revision if change.unconfirmed else revision, change.ended, now, len(change.record), change.record),
        )

    def _put_client(self, connection: sqlite3.Connection, client: str | None, key: bytes) -> None:
        # The record may replace one of a session of another client.
        if client is not None:
            connection.execute("INSERT OR REPLACE INTO owner VALUES (?, ?)", (key, client_key(client, self._model)))
        elif self._limits.client_sessions is not None:
            connection.execute("DELETE FROM owner WHERE key = ?", (key,))

    def _sweep(self, connection: sqlite3.Connection, usage: StoreUsage, now: float) -> StoreUsage:
        # The oldest expired records first, and not all at a time: other workers wait meanwhile.
        for due, seconds in (
            ("ended = 0", self._limits.idle_seconds),
            ("revision < 0 AND ended = 0", self._limits.lifetime),
            ("ended = 1", self._limits.retry_seconds),
        ):
            rows = connection.execute(
                f"SELECT rowid, size FROM session WHERE {due} AND last < ? ORDER BY last LIMIT ?",  # noqa: S608 - ours
                (now - seconds, _SWEPT_ROWS),
            ).fetchall()
            connection.executemany("DELETE FROM session WHERE rowid = ?", [(rowid,) for rowid, _ in rows])
            sessions = 0 if due == "ended = 1" else len(rows)
            size = usage.bytes - sum(size for _, size in rows)
            usage = StoreUsage(usage.open - sessions, size, usage.expired + sessions)
        return usage

    def _until_room(self, connection: sqlite3.Connection, now: float) -> float:
        # Seconds until the next session expires, unless it gets a request until then.
        (oldest,) = connection.execute("SELECT min(last) FROM session WHERE ended = 0").fetchone()
        (unconfirmed,) = connection.execute("SELECT min(last) FROM session WHERE revision < 0 AND ended = 0").fetchone()
        waits = [self._limits.idle_seconds]
        if oldest is not None:
            waits.append(self._limits.idle_seconds - max(0.0, now - oldest))
        if unconfirmed is not None:
            waits.append(self._limits.lifetime - max(0.0, now - unconfirmed))
        return min(waits)


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
