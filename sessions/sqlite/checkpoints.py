"""Checkpoints of a database in write-ahead mode, in a thread beside the transactions.

A checkpoint copies what the log holds to the database file and waits twice for the disk: 10 to 20 ms for 4 MB. SQLite
does this within a commit, in which a batch of requests waits. Here a second connection does it while requests are
served.

SQLite restarts the log only after all of it is copied, which never happens while writers append to it. So if the log is
long, a writer copies the rest between two transactions: a few pages, because the thread has just copied the others.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from threading import Condition, Thread

_log = logging.getLogger(__name__)

_BYTES = 32 * 1024 * 1024
"""Bytes of records after which the log is copied.

By then most pages of records were written several times, and are copied once.
"""
_LONG_LOG_PAGES = 8192
"""Pages above which the log is restarted."""
_REPEATS = 3
"""Times that a long log is copied again: SQLite waits for the database file only if there were no writes in between."""


class BackgroundCheckpoints:
    """Checkpoints in a thread with a separate connection; the first checkpoint starts the thread.

    `connect` opens the connection, in that thread. If a checkpoint fails, nothing is lost: the next one copies the
    rest.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._changed = Condition()
        self._thread: Thread | None = None
        self._running: sqlite3.Connection | None = None
        self._bytes = 0
        self._is_long = False
        self._closed = False
        self._last_error = ""

    def committed(self, size: int) -> bool:
        """Count committed bytes, and start a checkpoint in the thread if there are enough of them.

        Returns whether the log is long and was just copied, so that it should be restarted now.
        """
        with self._changed:
            is_long, self._is_long = self._is_long, False
            self._bytes += size
            if self._bytes >= _BYTES and not self._closed:
                self._changed.notify_all()
                if self._thread is None:
                    self._thread = self._started()
            return is_long

    def close(self) -> None:
        """Interrupt a running checkpoint, and close the connection."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._running is not None:
                self._running.interrupt()
        if self._thread is not None:
            self._thread.join()

    def _started(self) -> Thread | None:
        # A daemon: the process may end during a checkpoint, as it may be killed.
        thread = Thread(target=self._run, name="session checkpoints", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for it; the next commit tries again
            self._log_once(error)
            return None
        return thread

    def _run(self) -> None:
        while self._is_due():
            self._checkpoint()
        if self._running is not None:
            self._running.close()

    def _checkpoint(self) -> None:
        try:
            if self._running is None:
                self._use(self._connect())
            if self._running is not None:
                self._is_long = copy_log(self._running) > _LONG_LOG_PAGES
            self._last_error = ""
        except (sqlite3.Error, OSError) as error:
            self._log_once(error)

    def _log_once(self, error: Exception) -> None:
        """Log an error once. Transactions write to the log of the database only, so they may not see the error."""
        is_busy = isinstance(error, sqlite3.Error) and "locked" in str(error)  # others copy the log
        if self._closed or is_busy or str(error) == self._last_error:
            return
        self._last_error = str(error)
        _log.warning("the log of the session store (-wal) grows: it cannot be copied into its database: %s", error)

    def _use(self, connection: sqlite3.Connection) -> None:
        with self._changed:
            if self._closed:
                connection.close()
            else:
                self._running = connection

    def _is_due(self) -> bool:
        """Wait until a checkpoint is due; False if the object was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes >= _BYTES)
            self._bytes = 0
            return not self._closed


def copy_log(connection: sqlite3.Connection) -> int:
    """Copy the log to the database file, without stopping writers; returns its pages, -1 if others copy.

    Raises `sqlite3.Error`: the log is not copied, or not all of it.
    """
    passive = "PRAGMA wal_checkpoint(PASSIVE)"
    (_, pages, _) = connection.execute(passive).fetchone()
    if pages > _LONG_LOG_PAGES:
        for _ in range(_REPEATS):
            connection.execute(passive).fetchone()
    return int(pages)


def begin_log_again(connection: sqlite3.Connection) -> None:
    """Copy the rest of the log; the next transaction restarts it, unless a connection still reads it.

    The connection must not wait for others.

    Raises `sqlite3.Error`: the log is not copied, or not all of it.
    """
    connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
