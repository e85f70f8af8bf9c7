"""Store of one model's sessions in one file, shared by all workers of a host.

An SQLite database in write-ahead mode. A crash of any process loses nothing that was written; a crash of the system
may lose the last moments before it, and no more.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ..admission import RecordInfo, StoreUsage, is_expired
from ..session import store_key
from ..settings import Limits
from ..store import RecordUpdate, StoredRecord, StoreTotals, WriteOutcome
from ..store_time import LocalTime, Reading, StoredTime, current_time, host_clocks
from .checkpoints import BackgroundCheckpoints, begin_log_again
from .expiry import open_sessions, remove_expired
from .file import (
    WRONG_VALUES,
    FileIdentity,
    damaged_store,
    file_identity,
    open_database,
    open_for_checkpoints,
    store_error,
    store_file,
)
from .rows import SqliteChanges, find_records

_log = logging.getLogger(__name__)

_BUSY_SECONDS = 5.0
_PROBE_BUSY_SECONDS = 0.25
"""Time that a write of no change, which asks whether the store works, waits for a lock: requests wait behind it."""
_CHECKPOINT_BUSY_SECONDS = 0.2
"""Time after which a checkpoint leaves pages that others use to the next one."""
_MOST_INFOS = 32768
"""Records whose facts are kept in memory: 10 MB."""
_SWEEP_SECONDS = 5.0
"""Interval between two removals of expired records; where one was not enough, each write continues it."""


class _Opened(NamedTuple):
    connection: sqlite3.Connection
    identity: FileIdentity
    checkpoints: BackgroundCheckpoints


class SqliteStore:
    """Store of `model` in `directory`; implements `sessions.store.Store`.

    The first call opens the file. The next call opens it again after an error, and after the file was moved or deleted:
    the server need not be restarted.
    """

    def __init__(self, directory: Path, model: str, limits: Limits, clock: Callable[[], Reading] = host_clocks) -> None:
        self.file = store_file(directory, model)
        self.model = model
        self._limits = limits
        self._clock = clock
        self._lock = Lock()
        self._opened: _Opened | None = None
        self._read: dict[bytes, RecordInfo] = {}
        self._infos: dict[bytes, RecordInfo] = {}
        self._version: int | None = None
        self._local_time: LocalTime | None = None
        self._swept: float | None = None
        self._has_more_expired = False
        self._expired = 0

    def read(self, ids: Sequence[str], known: Mapping[str, int] | None = None) -> list[StoredRecord | None]:
        """Return the record of each session, in order; those of a `known` revision are left out."""
        keys = [store_key(id, self.model) for id in ids]  # noqa: A001 - the standard term
        with self._transaction("BEGIN", _BUSY_SECONDS) as connection:
            tally = _execute_when_unlocked(connection, "SELECT time, shared, uncounted FROM tally", _BUSY_SECONDS)
            now = self._current_time(self._clock(), *tally.fetchone()).time
            self._forget_changed(connection)
            wanted = dict(zip(keys, map((known or {}).get, ids)))
            infos, records = find_records(connection, wanted, self._infos)
            self._read = infos
            if not records and infos and len(infos) == len(keys):
                # Nearly always: the reader has all records, and none can have expired.
                revisions, _, last, *_ = zip(*map(infos.__getitem__, keys))
                if min(last) >= now - min(self._limits.lifetime, self._limits.retry_seconds):
                    return [*map(StoredRecord, repeat(b""), revisions)]
            return [
                None
                if (info := infos.get(key)) is None or is_expired(info, self._limits, now)
                else StoredRecord(records.get(key, b""), info.revision)
                for key in keys
            ]

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Make each change separately. The ids of one call are different."""
        seconds = _BUSY_SECONDS if changes else _PROBE_BUSY_SECONDS
        with self._transaction("BEGIN IMMEDIATE", seconds) as connection:
            tally = connection.execute("SELECT open, bytes, time, shared, uncounted FROM tally")
            count, size, *stored = tally.fetchone()
            reading = self._clock()
            current = self._current_time(reading, *stored)
            now = current.time
            before = StoreUsage(count, size)
            batch = SqliteChanges(connection, self.model, self._limits, before, now)
            outcomes = batch.make(changes, self._read)
            usage = batch.usage
            sweeps = self._swept is None or now - self._swept >= _SWEEP_SECONDS
            has_more_expired = False
            if sweeps or self._has_more_expired:
                usage, has_more_expired = remove_expired(connection, usage, self._limits, now)
            if usage != before or [*current] != stored:
                connection.execute(
                    "UPDATE tally SET open = ?, bytes = ?, time = ?, shared = ?, uncounted = ?",
                    (usage.open, usage.bytes, *current),
                )
            # If another worker has written since the last read, the next one forgets these with all others.
            if len(self._infos) > _MOST_INFOS:
                self._infos.clear()
            self._infos.update(batch.written)
        # These change only after the commit.
        self._local_time = LocalTime(current.local_estimate, reading.local)
        self._expired += usage.expired
        self._has_more_expired = has_more_expired
        if sweeps:
            self._swept = now
            self._infos = {key: one for key, one in self._infos.items() if not is_expired(one, self._limits, now)}
        opened = self._opened
        if opened is not None and opened.checkpoints.committed(sum([len(change.record) for change in changes])):
            self._begin_log_again()
        return outcomes

    def totals(self) -> StoreTotals:
        """Count open sessions and bytes. Raises `StoreUnavailableError`: nothing can be read."""
        with self._transaction("BEGIN", _BUSY_SECONDS) as connection:
            tally = _execute_when_unlocked(connection, "SELECT open, bytes, time, shared FROM tally", _BUSY_SECONDS)
            count, size, stored, shared = tally.fetchone()
            # By the shared clock alone: a report, on which nothing is removed. A new user has no other.
            now = stored if shared is None else stored + max(0.0, self._clock().shared - shared)
            expired, oldest = open_sessions(connection, self._limits, now)
            return StoreTotals(count - expired, size, None if oldest is None else max(0.0, now - oldest))

    def expired(self) -> int:
        """Return the number of idle sessions that this object has removed since the last call."""
        expired, self._expired = self._expired, 0
        return expired

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            self._disconnect()

    def _begin_log_again(self) -> None:
        # The transaction is committed, and a later write repeats this: a waiting worker may be more urgent.
        with self._lock:
            if self._opened is not None:
                try:
                    begin_log_again(self._opened.connection)
                except sqlite3.OperationalError:
                    return
                except sqlite3.DatabaseError as error:
                    # The changes are kept all the same: the answers of this batch are right.
                    _log.warning("%s", store_error(self.file, error, _BUSY_SECONDS))
                    self._disconnect()

    @contextmanager
    def _transaction(self, begin: str, seconds: float) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                connection = self._connection(seconds)
                _execute_when_unlocked(connection, begin, seconds)
                yield connection
                connection.execute("COMMIT")
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise store_error(self.file, error, seconds) from error
            except WRONG_VALUES as error:
                self._disconnect()
                raise damaged_store(self.file, error) from error
            except BaseException:
                self._disconnect()
                raise

    def _connection(self, seconds: float) -> sqlite3.Connection:
        # The file is opened again if another one has replaced it.
        if self._opened is not None and self._opened.identity != file_identity(self.file):
            self._disconnect()
        if self._opened is None:
            connection, identity = open_database(self.file, seconds)
            connection.execute("PRAGMA busy_timeout = 0")  # from here on `_execute_when_unlocked` waits
            connect = partial(open_for_checkpoints, self.file, identity, _CHECKPOINT_BUSY_SECONDS)
            self._opened = _Opened(connection, identity, BackgroundCheckpoints(connect))
            self._local_time = self._swept = self._version = None  # it may be another file
        return self._opened.connection

    def _disconnect(self) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.checkpoints.close()
            with suppress(sqlite3.Error):  # it may be closed because it is broken
                opened.connection.close()

    def _forget_changed(self, connection: sqlite3.Connection) -> None:
        """Forget the records if another connection has written since the last read.

        A record that this connection removes has expired by its facts too, so these need not be forgotten.
        """
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._infos.clear()
            self._version = version

    def _current_time(self, now: Reading, time: float, shared: float | None, uncounted: float) -> StoredTime:
        stored = StoredTime(time, now.shared if shared is None else shared, uncounted)
        self._local_time = self._local_time and self._local_time.synchronized(stored, now.local)
        return current_time(stored, self._local_time, now)


def _execute_when_unlocked(connection: sqlite3.Connection, statement: str, seconds: float) -> sqlite3.Cursor:
    """Execute the first statement that needs the file. Waits for other workers, which take a millisecond.

    SQLite's own waiting soon sleeps for 100 ms. Of four workers that wrote 32 records repeatedly, the slowest waited 40
    ms, and 330 ms with SQLite's waiting.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connection.execute(statement)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.0005)
