"""Checkpoints of a database in write-ahead mode, in a thread beside the transactions.

A checkpoint copies what the log holds to the database file and waits twice for the disk: 10 to 20 ms for 4 MB. SQLite
does this within a commit, in which a batch of requests waits. Here a second connection does it meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread

_BYTES = 4 * 1024 * 1024
"""Bytes of records after which the log is copied."""
_LONG_LOG_PAGES = 8192
"""Pages from which on the log is begun again: writers wait while its last pages are copied."""


class BackgroundCheckpoints:
    """Checkpoints by a thread, which begins with the first one and has a connection of its own.

    `connect` opens the connection, in that thread. An error of a checkpoint loses nothing, and the next one copies what
    it has left.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._changed = Condition()
        self._thread: Thread | None = None
        self._running: sqlite3.Connection | None = None
        self._bytes = 0
        self._closed = False

    def committed(self, size: int) -> None:
        """Count bytes that were committed; enough of them begin a checkpoint, for which nobody waits."""
        with self._changed:
            self._bytes += size
            if self._bytes < _BYTES or self._closed:
                return
            self._changed.notify_all()
            if self._thread is None:
                # A daemon: the process may end meanwhile, as it may be killed.
                self._thread = Thread(target=self._run, name="session checkpoints", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End a checkpoint that runs, and close the connection."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._running is not None:
                self._running.interrupt()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._is_due():
            # The next transaction meets the same error, and tells it.
            with suppress(sqlite3.Error, OSError):
                if self._running is None:
                    self._use(self._connect())
                if self._running is not None:
                    checkpoint(self._running)
        if self._running is not None:
            self._running.close()

    def _use(self, connection: sqlite3.Connection) -> None:
        with self._changed:
            if self._closed:
                connection.close()
            else:
                self._running = connection

    def _is_due(self) -> bool:
        """Wait for a checkpoint; False where there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes >= _BYTES)
            self._bytes = 0
            return not self._closed


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copy the log to the database file, beside writers; begin a long log again.

    A log that writers add to all the time is never copied to its end. So where it is long, they wait for the rest: some
    pages, since most of them have just been copied.

    Raises:
        sqlite3.Error: the log is not copied, or not all of it.
    """
    _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if pages > _LONG_LOG_PAGES:
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
