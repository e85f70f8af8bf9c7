"""Changes of one transaction of the store on disk: decided one by one, and written together."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat

from ..admission import OtherSessions, RecordInfo, StoreUsage, admit, admit_all, is_expired
from ..ids import client_key, store_key
from ..settings import Limits
from ..store import LimitExceeded, RecordUpdate, WriteOutcome, Written
from .expiry import remove_expired, seconds_until_room
from .rows import NewRow, count_others, find_infos, new_revisions, put_client, put_records, replace_records

_info: Callable[[tuple[int, bool, float, int, bool]], RecordInfo] = partial(tuple.__new__, RecordInfo)
"""Make a `RecordInfo` of a row, in half the time that the class takes."""


class SqliteChanges:
    """Changes of one model's sessions; `usage` is that of the store after the decided changes.

    `written` has the facts about the written records by key.

    Each change is decided as if those before it were in the file. Decided changes are written before records are
    counted or removed there, and at the end.
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
        revisions = new_revisions(len(changes))
        rows = [*zip(self._keys, changes, revisions)]
        after = admit_all(changes, [*map(read.get, self._keys)], self.usage, self._limits, self._now)
        if after is not None and replace_records(self._connection, rows, self._now):
            self.usage = after
            sizes = [len(change.record) for change in changes]
            columns = zip(revisions, repeat(False), repeat(self._now), sizes, repeat(False))
            self.written = dict(zip(self._keys, map(_info, columns)))
            return [*map(Written, revisions)]
        self._infos = find_infos(self._connection, self._keys)
        if after is not None:
            self._count_replaced(rows, read)
        outcomes = [
            Written(number) if self._is_written(key, number) else self._decide(key, change, number)
            for key, change, number in rows
        ]
        self._write_decided()
        return outcomes

    def _is_written(self, key: bytes, number: int) -> bool:
        return (found := self._infos.get(key)) is not None and found.revision == number

    def _count_replaced(
        self, rows: Sequence[tuple[bytes, RecordUpdate, int]], read: Mapping[bytes, RecordInfo]
    ) -> None:
        # Another worker has replaced the others first.
        grown = sum(len(one.record) - read[key].size for key, one, number in rows if self._is_written(key, number))
        self.usage = self.usage._replace(bytes=self.usage.bytes + grown)

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
        # The record may replace one of a session of another client.
        if client is not None or self._limits.client_sessions is not None:
            put_client(self._connection, key, None if client is None else client_key(client, self._model))

    def _make_room(self) -> bool:
        """Remove expired records; returns whether there were any."""
        self._write_decided()
        before = self.usage
        self.usage = remove_expired(self._connection, self.usage, self._limits, self._now).usage
        self._infos = find_infos(self._connection, self._keys)  # some of them may be gone
        return self.usage != before

    def _write_decided(self) -> None:
        if self._decided:
            put_records(self._connection, self._decided, self._now)
            self._decided.clear()
