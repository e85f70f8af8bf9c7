"""Rows of the store on disk: records by their keys, many with each statement, and the clients of sessions."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from secrets import token_bytes
from typing import Any, NamedTuple

from .admission import OtherSessions, RecordInfo
from .store import RecordUpdate

_KEYS = 250
"""Keys of one statement; SQLite takes 999 in all its versions."""


class FoundRow(NamedTuple):
    """A record as it is in the file."""

    info: RecordInfo
    record: bytes


def find_records(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, FoundRow]:
    """Return the records that there are, by their keys."""
    columns = "key, revision, ended, last, size, revision < 0, record"
    return {row[0]: FoundRow(RecordInfo(*row[1:6]), row[6]) for row in _select(connection, columns, keys)}


def find_infos(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, RecordInfo]:
    """Return what is known of each record that there is, by its key."""
    columns = "key, revision, ended, last, size, revision < 0"
    return {row[0]: RecordInfo(*row[1:]) for row in _select(connection, columns, keys)}


def put_records(connection: sqlite3.Connection, changes: Sequence[tuple[bytes, RecordUpdate]], now: float) -> None:
    """Write the record of each change under its key, with a new revision."""
    # One statement prepared once: alone, each would be looked up again.
    connection.executemany(
        "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
        "(revision, ended, last, size, record) = "
        "(excluded.revision, excluded.ended, excluded.last, excluded.size, excluded.record)",
        [
            (key, ~number if one.unconfirmed else number, one.ended, now, len(one.record), one.record)
            for (key, one), number in zip(changes, _revisions(len(changes)))
        ],
    )


def count_others(connection: sqlite3.Connection, key: bytes, unconfirmed: bool, client: bytes | None) -> OtherSessions:
    """Count the open sessions beside that of `key`: unconfirmed ones, if it is one, and those of its client."""
    others = of_client = 0
    if unconfirmed:
        (others,) = connection.execute(
            "SELECT count(*) FROM session WHERE revision < 0 AND ended = 0 AND key <> ?", (key,)
        ).fetchone()
    if client is not None:
        (of_client,) = connection.execute(
            "SELECT count(*) FROM owner JOIN session USING (key) WHERE client = ? AND ended = 0 AND key <> ?",
            (client, key),
        ).fetchone()
    return OtherSessions(others, of_client)


def put_client(connection: sqlite3.Connection, key: bytes, client: bytes | None) -> None:
    """Write the client of a session; None: it has none."""
    if client is not None:
        connection.execute("INSERT OR REPLACE INTO owner VALUES (?, ?)", (key, client))
    else:
        connection.execute("DELETE FROM owner WHERE key = ?", (key,))


def _select(connection: sqlite3.Connection, columns: str, keys: Sequence[bytes]) -> Iterator[Any]:
    # One statement for many keys takes a third of the time of one for each.
    for start in range(0, len(keys), _KEYS):
        some = keys[start : start + _KEYS]
        marks = ", ".join("?" * len(some))
        yield from connection.execute(f"SELECT {columns} FROM session WHERE key IN ({marks})", some).fetchall()  # noqa: S608 - ours


def _revisions(count: int) -> tuple[int, ...]:
    """Return random revisions of 63 bits, unique even among removed records."""
    return tuple([number >> 1 for number in struct.unpack(f"{count}Q", token_bytes(8 * count))])
