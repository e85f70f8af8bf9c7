"""Order in which the records of the store on disk expire.

The table `expiry` has a time for each record, which is not after the record's last write. It is set when a session
starts or ends, and otherwise only when it is read: a request of an open session changes nothing here. (An index of the
last writes themselves would have a changed page for most of the requests of a batch.) Triggers set the time.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from ..admission import StoreUsage
from ..settings import Limits

EXPIRY_SCHEMA = """
CREATE TABLE expiry (key BLOB PRIMARY KEY NOT NULL, ended INTEGER NOT NULL, last REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX expiry_by_last ON expiry (ended, last);
CREATE TRIGGER expiry_begins AFTER INSERT ON session BEGIN
    INSERT OR REPLACE INTO expiry VALUES (new.key, new.ended, new.last);
END;
CREATE TRIGGER expiry_changes AFTER UPDATE OF ended ON session WHEN new.ended <> old.ended BEGIN
    UPDATE expiry SET ended = new.ended, last = new.last WHERE key = new.key;
END;
CREATE TRIGGER expiry_ends AFTER DELETE ON session BEGIN DELETE FROM expiry WHERE key = old.key; END;
"""

_REMOVED = 200
"""Records removed at a time, while other workers wait."""
_FIRST = 32
"""Records read to find the one that expires first."""
_LOOKS = 10
"""Most reads of some records in the search for expired ones; the next call continues."""


class _Row(NamedTuple):
    key: bytes
    noted: float
    """The time in the table."""
    last: float
    """The time of the last write, not before."""
    size: int


def remove_expired(
    connection: sqlite3.Connection, usage: StoreUsage, limits: Limits, now: float
) -> tuple[StoreUsage, bool]:
    """Remove some of the expired records of each kind, the oldest first.

    Returns the usage after it, and whether as many were removed as may be at a time, so that there may be more.
    """
    idle = _due(connection, 0, now - limits.idle_seconds)
    usage = _remove(connection, idle, usage, are_open=True)
    unconfirmed: list[tuple[bytes, int]] = connection.execute(
        "SELECT key, size FROM session WHERE revision < 0 AND ended = 0 AND last < ? ORDER BY last LIMIT ?",
        (now - limits.lifetime, _REMOVED),
    ).fetchall()
    usage = _remove(connection, unconfirmed, usage, are_open=True)
    ended = _due(connection, 1, now - limits.retry_seconds)
    usage = _remove(connection, ended, usage, are_open=False)
    return usage, max(len(idle), len(unconfirmed), len(ended)) == _REMOVED


def seconds_until_room(connection: sqlite3.Connection, limits: Limits, now: float) -> float:
    """Return the seconds until the next session expires, unless it gets a request until then."""
    waits = [limits.idle_seconds]
    rows = _exact(connection, 0, float("inf"), _FIRST)
    if rows:
        waits.append(limits.idle_seconds - max(0.0, now - rows[0].last))
    (unconfirmed,) = connection.execute("SELECT min(last) FROM session WHERE revision < 0 AND ended = 0").fetchone()
    if unconfirmed is not None:
        waits.append(limits.lifetime - max(0.0, now - unconfirmed))
    return min(waits)


def open_sessions(connection: sqlite3.Connection, limits: Limits, now: float) -> tuple[int, float | None]:
    """Count the open sessions that have expired, and find the last write of the oldest other; nothing is written."""
    idle, unconfirmed = now - limits.idle_seconds, now - limits.lifetime
    expired, oldest = 0, None
    for noted, last, is_unconfirmed in connection.execute(
        "SELECT expiry.last, session.last, revision < 0 FROM expiry JOIN session USING (key) WHERE expiry.ended = 0 "
        "ORDER BY expiry.last"
    ):
        if oldest is not None and noted >= max(oldest, idle, unconfirmed):
            break
        if last < idle or (is_unconfirmed and last < unconfirmed):
            expired += 1
        else:
            oldest = last if oldest is None else min(oldest, last)
    return expired, oldest


def _remove(
    connection: sqlite3.Connection, rows: list[tuple[bytes, int]], usage: StoreUsage, are_open: bool
) -> StoreUsage:
    connection.executemany("DELETE FROM session WHERE key = ?", [(key,) for key, _ in rows])
    sessions = len(rows) if are_open else 0
    size = usage.bytes - sum(size for _, size in rows)
    return StoreUsage(usage.open - sessions, size, usage.expired + sessions)


def _due(connection: sqlite3.Connection, ended: int, before: float) -> list[tuple[bytes, int]]:
    """Return the keys and sizes of records that were last written before a time."""
    return [(row.key, row.size) for row in _exact(connection, ended, before, _REMOVED) if row.last < before]


def _exact(connection: sqlite3.Connection, ended: int, before: float, most: int) -> list[_Row]:
    """Return the first records by their last write, and note it for those that were written since it was noted.

    Each is noted at most once for each of its requests.
    """
    rows: list[_Row] = []
    for _ in range(_LOOKS):
        found = connection.execute(
            "SELECT expiry.key, expiry.last, session.last, size FROM expiry JOIN session USING (key) "
            "WHERE expiry.ended = ? AND expiry.last < ? ORDER BY expiry.last LIMIT ?",
            (ended, before, most),
        )
        rows = [_Row(*row) for row in found]
        later = [(row.last, row.key) for row in rows if row.last > row.noted]
        if not later:
            break
        connection.executemany("UPDATE expiry SET last = ? WHERE key = ?", later)
    return rows
