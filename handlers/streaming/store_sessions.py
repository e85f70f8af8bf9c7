"""Sessions in a store that all workers share, and a worker's cache of them.

A cached session has its revision, which a store never gives twice. At each request, the store still says the revision
of its record, which differs if another worker has written since.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from typing import NamedTuple

from ...sessions.session import CorruptRecordError, Reply, Session, decode_session, encode_session, store_key
from ...sessions.store import (
    Conflict,
    LimitExceeded,
    RecordUpdate,
    Store,
    StoredRecord,
    StoreFullError,
    StoreUnavailableError,
    Written,
)
from ..responses import RequestError
from .state import LoadedSession, RevisionConflict, SessionKey, SessionSource, SessionUpdate

_BYTES = 64 * 1024 * 1024
_BYTES_BESIDE = 1024
"""Bytes of a session beside those of its record, about."""


class CachedSession(NamedTuple):
    """A session and the revision of its record."""

    revision: int
    session: Session
    size: int
    """Bytes of the record."""


class SessionCache:
    """LRU cache of session records, limited in bytes.

    A session that was not written for more than `seconds` has expired in its store, and is removed too. `clock` returns
    seconds.

    >>> cache = SessionCache()
    >>> cache.keep({"a": None})
    >>> cache.find(["a"])
    {}
    """

    def __init__(self, most: int = _BYTES, seconds: float = inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[CachedSession, float]] = OrderedDict()
        self._lock = Lock()

    def find(self, ids: Iterable[str]) -> dict[str, CachedSession]:
        """Return the cached sessions among these."""
        with self._lock:
            return {id: entry[0] for id in ids if (entry := self._kept.get(id)) is not None}  # noqa: A001 - the standard term

    def keep(self, sessions: Mapping[str, CachedSession | None]) -> None:
        """Store each session under its id, in place of an earlier one; None: forget it."""
        now = self._clock()
        with self._lock:
            for id, cached in sessions.items():  # noqa: A001 - the standard term
                before = self._kept.pop(id, None)
                if before is not None:
                    self._bytes -= before[0].size
                if cached is not None:
                    self._kept[id] = cached, now
                    self._bytes += cached.size
            while self._kept and self._must_go(now):
                _, (oldest, _) = self._kept.popitem(last=False)
                self._bytes -= oldest.size

    def _must_go(self, now: float) -> bool:
        """Whether the oldest session has no room, or has expired."""
        _, since = next(iter(self._kept.values()))
        return now - since > self._seconds or self._bytes + len(self._kept) * _BYTES_BESIDE > self._most


_log = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0
"""Seconds after which a client may try again when the store is unavailable."""


@dataclass(frozen=True)
class StoreSessions(SessionSource):
    """Sessions in a store that all workers share."""

    store: Store
    cache: SessionCache = field(default_factory=SessionCache)

    def load(self, keys: Sequence[SessionKey]) -> list[LoadedSession | RequestError]:
        """Read the record of each session."""
        ids = [key.id for key in keys]
        cached = self.cache.find(ids)
        try:
            records = self.store.read(ids, {id: entry.revision for id, entry in cached.items()})  # noqa: A001 - the standard term
        except StoreUnavailableError as error:
            return [_unavailable(error)] * len(keys)
        refused = _refusals(records)
        return [
            LoadedSession(entry.session, record.revision)
            if isinstance(record, StoredRecord) and (entry := cached.get(id)) and entry.revision == record.revision
            else refused[record]
            if isinstance(record, StoreUnavailableError)
            else _loaded(record, store_key(id, self.store.model))
            for id, record in zip(ids, records)  # noqa: A001 - the standard term
        ]

    def save(self, updates: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Write each session whose record is still the loaded one."""
        sessions = [one.session if one.has_own_id or not one.starts else _stored(one.session) for one in updates]
        changes = [_record_update(*one, self.store.model) for one in zip(updates, sessions)]
        try:
            outcomes = self.store.write(changes)
        except StoreUnavailableError as error:
            return [_unavailable(error)] * len(updates)
        entries = map(_cache_entry, changes, sessions, outcomes)
        self.cache.keep(dict(zip([change.id for change in changes], entries)))
        if {*map(type, outcomes)} == {Written}:
            return [None] * len(updates)
        refused = _refusals(outcomes)
        return [
            refused[outcome] if isinstance(outcome, StoreUnavailableError) else _write_refusal(update, outcome)
            for update, outcome in zip(updates, outcomes)
        ]

    def expired(self) -> int:
        """Return the store's count."""
        return self.store.expired()

    def available(self) -> bool:
        """Whether the store accepts a write, tried with one of no session.

        One server of several is enough. Sessions on the others get 503, and taking this host out of service would not
        help.
        """
        try:
            self.store.write([])
        except StoreUnavailableError as error:
            _log.error("the model is not ready: %s", error)
            return False
        return True


def _stored(session: Session) -> Session:
    """Return a session without the response that has its id: no other client can repeat its request."""
    return session._replace(last_digest=b"", last_reply=Reply(b"", ""))


def _record_update(update: SessionUpdate, session: Session, model: str) -> RecordUpdate:
    (before, revision, _), record = update.loaded, encode_session(session, store_key(update.id, model))
    if before is not None:
        return RecordUpdate(update.id, record, revision, session.ended)
    return RecordUpdate(update.id, record, revision, session.ended, not update.has_own_id, update.client)


def _cache_entry(change: RecordUpdate, session: Session, outcome: object) -> CachedSession | None:
    # An ended session is read from the store if its last request is sent again, so it takes no memory.
    revision = outcome.revision if isinstance(outcome, Written) and not session.ended else None
    return None if revision is None else CachedSession(revision, session, len(change.record))


def _loaded(found: StoredRecord | None, key: bytes) -> LoadedSession:
    if found is None:
        return LoadedSession(None)
    try:
        return LoadedSession(decode_session(found.record, key), found.revision)
    except CorruptRecordError as error:
        _log.error("a session cannot be resumed: %s", error)
        return LoadedSession(None, found.revision, damaged=True)


def _write_refusal(update: SessionUpdate, outcome: object) -> RevisionConflict | RequestError | None:
    if isinstance(outcome, Conflict):
        return RevisionConflict()
    if isinstance(outcome, LimitExceeded):
        wait = max(1.0, outcome.retry_after)
        if update.starts:
            message = f"no further session can start: the limit of {outcome.limit} is reached"
            return RequestError("TooManySessions", message, wait)
        message = f"the session cannot store more: the limit of {outcome.limit} is reached; send a shorter request"
        return RequestError("StoreFull", message, wait)
    return None


def _refusals(found: Sequence[object]) -> dict[StoreUnavailableError, RequestError]:
    """Return the refusal for each error; those of one server are one, which is logged once."""
    errors = dict.fromkeys(one for one in found if isinstance(one, StoreUnavailableError))
    return {error: _unavailable(error) for error in errors}


def _unavailable(error: StoreUnavailableError) -> RequestError:
    _log.error("%s", error)
    if isinstance(error, StoreFullError):
        return RequestError("StoreFull", "there is no space to store sessions; the cause is in the server's log", 10.0)
    message = "sessions cannot be stored at the moment; the cause is in the server's log. Send it again, with its step"
    return RequestError("StoreUnavailable", message, _RETRY_SECONDS)
