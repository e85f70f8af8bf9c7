"""Sessions as a worker last read or wrote them, by their revisions, which a store never gives twice.

At each request, the store still says its revision, which differs if another worker has written since.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from math import inf
from threading import Lock
from typing import NamedTuple

from ...sessions.session import Session

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
