"""Rows of the store on disk: many records with each statement, and the changes of one transaction."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from secrets import token_bytes
from typing import Any, NamedTuple

from ..admission import OtherSessions, RecordInfo, StoreUsage, admit, admit_all, is_expired
from ..session import client_key, store_key
from ..settings import Limits
from ..store import LimitExceeded, RecordUpdate, WriteOutcome, Written
from .expiry import remove_expired, seconds_until_room

_KEYS = 250
"""Keys of one statement; SQLite takes 999 in all its versions."""
_INSERT = (
    "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET (revision, ended, last, size, record) = "
    "(excluded.revision, excluded.ended, excluded.last, excluded.size, excluded.record)"
)


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
    """Write the record of each change. Raises `ValueError`: keys beside a new one are out of order."""
    # Each statement is prepared once for all of them. The first leaves `ended` out, at which a trigger looks.
    connection.executemany(
        "UPDATE session SET revision = ?, last = ?, size = ?, record = ? WHERE key = ?",
        [(row.revision, now, len(row.change.record), row.change.record, row.key) for row in changes if row.continues],
    )
    for row in changes:
        if not row.continues:
            values = (row.key, row.revision, row.change.ended, now, len(row.change.record), row.change.record)
            connection.execute(_INSERT, values)
            _check_order(connection, row.key)


def _check_order(connection: sqlite3.Connection, key: bytes) -> None:
    # In a damaged index a search takes the wrong way. A later insertion of another key moves cells, and a former record
    # of this session would come back. So each key is checked before the next one is inserted.
    before = connection.execute("SELECT key FROM session WHERE key <= ? ORDER BY key DESC LIMIT 3", (key,)).fetchall()
    after = connection.execute("SELECT key FROM session WHERE key > ? ORDER BY key LIMIT 2", (key,)).fetchall()
    keys = [*reversed(before), *after]
    if keys != sorted(set(keys)):
        raise ValueError("keys of the index are out of order")


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


def _select(connection: sqlite3.Connection, columns: str, keys: Sequence[bytes]) -> Iterator[Any]:
    # One statement for many keys takes a third of the time of one for each.
    for start in range(0, len(keys), _KEYS):
        some = keys[start : start + _KEYS]
        marks = ", ".join("?" * len(some))
        yield from connection.execute(f"SELECT {columns} FROM session WHERE key IN ({marks})", some).fetchall()  # noqa: S608 - ours


_info: Callable[[tuple[int, bool, float, int, bool]], RecordInfo] = partial(tuple.__new__, RecordInfo)
"""Make a `RecordInfo` of a row, in half the time that the class takes."""


class SqliteChanges:
    """Changes of one model's sessions; `usage` is that of the store after the decided changes.

    `written` has the facts about the written records by key. Each change is decided as if those before it were in the
    file. Decided changes are written before records are counted or removed there, and at the end.
    """

    def __init__(
        self, connection: sqlite3.Connection, model: str, limits: Limits, usage: StoreUsage, now: float
    ) -> None:
        self.usage = usage
        self.written: dict[bytes, RecordInfo] = {}
        self._connection = connection
        self._model = model
        self._limits = limits
        self._now = now
        self._keys: list[bytes] = []
        self._infos: dict[bytes, RecordInfo] = {}
        self._decided: list[NewRow] = []

    def make(self, changes: Sequence[RecordUpdate], read: Mapping[bytes, RecordInfo]) -> list[WriteOutcome]:
        """Make each change separately; the ids are different, and `read` is what was read before, by keys.

        Most requests continue the session that was read. So one statement first tries to write all records on that
        assumption.
        """
        self._keys = [store_key(change.id, self._model) for change in changes]
        # Random numbers of 63 bits, unique even among removed records.
        numbers = struct.unpack(f"{len(changes)}Q", token_bytes(8 * len(changes)))
        revisions = [number >> 1 for number in numbers]
        rows = [*zip(self._keys, changes, revisions)]
        after = admit_all(changes, [*map(read.get, self._keys)], self.usage, self._limits, self._now)
        if after is not None and replace_records(self._connection, rows, self._now):
            self.usage = after
            sizes = [len(change.record) for change in changes]
            columns = zip(revisions, repeat(False), repeat(self._now), sizes, repeat(False))
            self.written = dict(zip(self._keys, map(_info, columns)))
            return [*map(Written, revisions)]
        self._infos = find_infos(self._connection, self._keys)
        if after is not None:  # another worker has replaced the others first
            grown = sum(len(one.record) - read[key].size for key, one, number in rows if self._is_written(key, number))
            self.usage = self.usage._replace(bytes=self.usage.bytes + grown)
        outcomes = [
            Written(number) if self._is_written(key, number) else self._decide(key, change, number)
            for key, change, number in rows
        ]
        self._write_decided()
        return outcomes

    def _is_written(self, key: bytes, number: int) -> bool:
        return (found := self._infos.get(key)) is not None and found.revision == number

    def _decide(self, key: bytes, change: RecordUpdate, number: int) -> WriteOutcome:
        while True:
            found = self._infos.get(key)
            others = self._others(key, change)
            outcome, after = admit(change, found, self.usage, self._limits, self._now, others)
            if not isinstance(outcome, LimitExceeded):
                break
            if not self._make_room():
                wait = seconds_until_room(self._connection, self._limits, self._now)
                return LimitExceeded(outcome.limit, wait)
        self.usage = after
        if isinstance(outcome, Written):
            revision = ~number if change.unconfirmed else number
            continues = found is not None and not found.ended and not change.ended
            self._decided.append(NewRow(key, revision, change, continues))
            self.written[key] = RecordInfo(revision, change.ended, self._now, len(change.record), change.unconfirmed)
            outcome = Written(revision)
            if change.client is not None or found is None or found.ended or is_expired(found, self._limits, self._now):
                self._put_client(key, change.client)
        return outcome

    def _others(self, key: bytes, change: RecordUpdate) -> OtherSessions:
        if not change.unconfirmed and change.client is None:
            return OtherSessions()
        self._write_decided()
        client = None if change.client is None else client_key(change.client, self._model)
        return count_others(self._connection, key, change.unconfirmed, client)

    def _put_client(self, key: bytes, client: str | None) -> None:
        if client is not None:
            own = (key, client_key(client, self._model))
            self._connection.execute("INSERT OR REPLACE INTO owner VALUES (?, ?)", own)
        elif self._limits.client_sessions is not None:  # the record may replace one of a session of another client
            self._connection.execute("DELETE FROM owner WHERE key = ?", (key,))

    def _make_room(self) -> bool:
        """Remove expired records; returns whether there were any."""
        self._write_decided()
        before = self.usage
        self.usage, _ = remove_expired(self._connection, self.usage, self._limits, self._now)
        self._infos = find_infos(self._connection, self._keys)  # some of them may be gone
        return self.usage != before

    def _write_decided(self) -> None:
        if self._decided:
            put_records(self._connection, self._decided, self._now)
            self._decided.clear()
