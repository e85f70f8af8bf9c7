"""Store protocol: records of sessions between their requests, outcomes of writes, and admission rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .settings import Limits


class RecordInfo(NamedTuple):
    """Facts about a stored record."""

    revision: int
    ended: bool
    last: float
    """Time of the write, in seconds."""
    size: int


class StoreUsage(NamedTuple):
    """Usage of a store. Expired records count until they are removed."""

    open: int
    """Sessions that have not ended."""
    bytes: int
    """Size of all records."""
    expired: int = 0
    """Idle sessions that were removed."""


def is_expired(info: RecordInfo, limits: Limits, now: float) -> bool:
    """Whether the record counts as missing: its session was idle, or has ended, for too long.

    >>> limits = Limits(sessions=1, bytes=1, idle_seconds=900, retry_seconds=60)
    >>> [is_expired(RecordInfo(1, ended=False, last=100, size=1), limits, now) for now in (1000, 1001)]
    [False, True]
    """
    return info.last < now - (limits.retry_seconds if info.ended else limits.idle_seconds)


def admit(
    change: RecordUpdate, current: RecordInfo | None, usage: StoreUsage, limits: Limits, now: float
) -> tuple[WriteOutcome, StoreUsage]:
    """Decide whether `change` replaces `current`, and return the outcome and the usage of the store
    after it.

    Limits apply to new sessions; an open one continues beyond them. The `retry_after` of a `LimitExceeded` is 0: it is
    for the store to find.
    """
    expired = current is not None and is_expired(current, limits, now)
    present = None if expired else current
    is_new = present is None or present.ended
    revision = None if present is None else present.revision
    if change.revision != revision and not (change.revision is None and is_new):
        return Conflict(), usage
    after = _after(change, current, usage, expired)
    if is_new and not change.ended and after.open > limits.sessions:
        return LimitExceeded(f"{limits.sessions} sessions", 0.0), usage
    if is_new and after.bytes > limits.bytes:
        return LimitExceeded(f"{limits.bytes} bytes", 0.0), usage
    return Written(), after


def _after(change: RecordUpdate, current: RecordInfo | None, usage: StoreUsage, expired: bool) -> StoreUsage:
    was_open = current is not None and not current.ended
    return StoreUsage(
        usage.open - was_open + (not change.ended),
        usage.bytes - (current.size if current else 0) + len(change.record),
        usage.expired + (was_open and expired),
    )


class StoreUnavailableError(Exception):
    """The store cannot be read or written now; the message says why, and what an operator can do."""


class StoreFullError(StoreUnavailableError):
    """The store has no space: the disk is full, or the server is at its memory limit."""


class StoredRecord(NamedTuple):
    """A record as it is in the store."""

    record: bytes
    revision: int
    """Changes with every write; a writer names the revision that it has read."""


class RecordUpdate(NamedTuple):
    """A record that replaces the one that was read."""

    id: str
    record: bytes
    revision: int | None
    """Revision of the record that was read; None where there was none."""
    ended: bool = False


@dataclass(frozen=True)
class Written:
    """The record is in the store."""


@dataclass(frozen=True)
class Conflict:
    """Another writer was first: the record has changed since it was read; this change was not made."""


@dataclass(frozen=True)
class LimitExceeded:
    """A new session would be beyond a limit; this change was not made."""

    limit: str
    """The limit in words: `10000 sessions` or `1073741824 bytes`."""
    retry_after: float
    """Seconds until the next session expires, unless it gets a request until then."""


WriteOutcome = Written | Conflict | LimitExceeded


class StoreTotals(NamedTuple):
    """Totals of one model's sessions."""

    sessions: int
    bytes: int
    """Size of all records that are not yet removed, those of ended and expired sessions included."""
    oldest_seconds: float | None
    """Time since the last request of the session that has waited longest; None where there is no session."""


class Store(Protocol):
    """Store of one model's sessions, shared by all its workers.

    A session that was idle for too long counts as missing, whether or not its record has been removed yet.
    """

    def read(self, ids: Sequence[str]) -> list[StoredRecord | None]:
        """Return the record of each session, in order; None where there is none.

        Raises:
            StoreUnavailableError: nothing can be read.
        """

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Make each change on its own: completely or not at all.

        A crash of a process loses no change that was made. The ids of one call are different.

        Raises:
            StoreUnavailableError: no change was made. Over a network this is not certain: the response may have been
                lost.
        """

    def totals(self) -> StoreTotals:
        """Count open sessions and bytes.

        Raises:
            StoreUnavailableError: nothing can be read.
        """

    def expired(self) -> int:
        """Return the number of idle sessions that this store object has removed since the last call."""
