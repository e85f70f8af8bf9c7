"""Rows of the store on disk: many records with each statement, and the clients of sessions."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from secrets import token_bytes
from typing import Any, NamedTuple

from ..admission import OtherSessions, RecordInfo
from ..store import RecordUpdate

_KEYS = 250
"""Keys of one statement; SQLite takes 999 in all its versions."""


class NewRow(NamedTuple):
    """A record that is to be written."""

    key: bytes
    revision: int
    """Negative for an unconfirmed session."""
    change: RecordUpdate
    continues: bool
    """Whether an open session has the key, and stays open."""


def find_records(
    connection: sqlite3.Connection, known: Mapping[bytes, int | None], infos: Mapping[bytes, RecordInfo]
) -> tuple[dict[bytes, RecordInfo], dict[bytes, bytes]]:
    """Return facts about each existing record by its key, and the records that are not `known`.

    `infos` has facts that still hold: these records are not read.
    """
    found = {key: info for key in known if (info := infos.get(key)) is not None and info.revision == known[key]}
    records: dict[bytes, bytes] = {}
    if len(found) == len(known):
        return found, records
    found.update(find_infos(connection, [key for key in known if known[key] is not None and key not in found]))
    wanted = [key for key in known if known[key] is None or (key in found and found[key].revision != known[key])]
    columns = "key, revision, ended, last, size, revision < 0, record"
    for row in _select(connection, columns, wanted):
        # A damaged page can hold another type. Then one session is damaged, like one whose record has no content.
        found[row[0]], records[row[0]] = RecordInfo(*row[1:6]), row[6] if isinstance(row[6], bytes) else b""
    return found, records


def find_infos(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, RecordInfo]:
    """Return facts about each existing record, by its key."""
    columns = "key, revision, ended, last, size, revision < 0"
    return {row[0]: RecordInfo(*row[1:]) for row in _select(connection, columns, keys)}


def put_records(connection: sqlite3.Connection, changes: Sequence[NewRow], now: float) -> None:
    """Write the record of each change."""
    # Each statement is prepared once for all of them. The first leaves `ended` out, at which a trigger looks.
    connection.executemany(
        "UPDATE session SET revision = ?, last = ?, size = ?, record = ? WHERE key = ?",
        [(row.revision, now, len(row.change.record), row.change.record, row.key) for row in changes if row.continues],
    )
    connection.executemany(
        "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
        "(revision, ended, last, size, record) = "
        "(excluded.revision, excluded.ended, excluded.last, excluded.size, excluded.record)",
        [
            (row.key, row.revision, row.change.ended, now, len(row.change.record), row.change.record)
            for row in changes
            if not row.continues
        ],
    )


def replace_records(
    connection: sqlite3.Connection, changes: Sequence[tuple[bytes, RecordUpdate, int]], now: float
) -> bool:
    """Write the record of each change that names the stored revision; return whether all do.

    Each comes with its key and its new revision.
    """
    keys, updates, new = zip(*changes)
    _, records, read, *_ = zip(*updates)
    written = connection.executemany(
        "UPDATE session SET revision = ?, last = ?, size = ?, record = ? WHERE key = ? AND revision = ?",
        zip(new, repeat(now), map(len, records), records, keys, read),
    )
    return written.rowcount == len(changes)


def new_revisions(count: int) -> tuple[int, ...]:
    """Return random revisions of 63 bits, unique even among removed records."""
    return tuple([number >> 1 for number in struct.unpack(f"{count}Q", token_bytes(8 * count))])


def count_others(connection: sqlite3.Connection, key: bytes, unconfirmed: bool, client: bytes | None) -> OtherSessions:
    """Count the open sessions other than `key`: unconfirmed ones, and those of its client."""
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
