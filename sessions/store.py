"""Where sessions lie between their pieces: what every store promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .settings import Limits


class RecordInfo(NamedTuple):
    """What a store knows of a record without reading it."""

    revision: int
    ended: bool
    last: float
    """When it was written, in seconds."""
    size: int


class StoreUsage(NamedTuple):
    """What a store holds. What has lapsed counts until it is removed."""

    open: int
    """Sessions that have not ended."""
    bytes: int
    """Of all records."""
    expired: int = 0
    """Sessions that were removed because they were idle."""


def is_expired(kept: RecordInfo, limits: Limits, now: float) -> bool:
    """Whether it is as if the record had never been.

    >>> limits = Limits(sessions=1, bytes=1, idle_seconds=900, retry_seconds=60)
    >>> [is_expired(RecordInfo(1, ended=False, last=100, size=1), limits, now) for now in (1000, 1001)]
    [False, True]
    """
    return kept.last < now - (limits.retry_seconds if kept.ended else limits.idle_seconds)


def admit(
    change: RecordUpdate, kept: RecordInfo | None, tally: StoreUsage, limits: Limits, now: float
) -> tuple[WriteOutcome, StoreUsage]:
    """Whether `change` is made in the place of `kept`, and what the store holds then.

    The limits hold for new sessions; an open session always continues. A `LimitExceeded` does not know yet when there
    will be room.
    """
    lapsed = kept is not None and is_expired(kept, limits, now)
    present = None if lapsed else kept
    is_new = present is None or present.ended
    revision = None if present is None else present.revision
    if change.revision != revision and not (change.revision is None and is_new):
        return Conflict(), tally
    after = _after(change, kept, tally, lapsed)
    if is_new and not change.ended and after.open > limits.sessions:
        return LimitExceeded(f"{limits.sessions} sessions", 0.0), tally
    if is_new and after.bytes > limits.bytes:
        return LimitExceeded(f"{limits.bytes} bytes", 0.0), tally
    return Written(), after


def _after(change: RecordUpdate, kept: RecordInfo | None, tally: StoreUsage, lapsed: bool) -> StoreUsage:
    was_open = kept is not None and not kept.ended
    return StoreUsage(
        tally.open - was_open + (not change.ended),
        tally.bytes - (kept.size if kept else 0) + len(change.record),
        tally.expired + (was_open and lapsed),
    )


class StoreUnavailableError(Exception):
    """The store cannot be read or written now. Says what is wrong, and what an operator can do."""


class StoreFullError(StoreUnavailableError):
    """What the store writes to has no room: a full disk, a server at its memory limit."""


class StoredRecord(NamedTuple):
    """A record as it lies in the store."""

    record: bytes
    revision: int
    """Another after every write: who writes names the one it has read."""


class RecordUpdate(NamedTuple):
    """A record to be written in the place of the one that was read."""

    id: str
    record: bytes
    revision: int | None
    """Of the record that was read; None where there was none."""
    ended: bool = False


@dataclass(frozen=True)
class Written:
    """The record stands in the store."""


@dataclass(frozen=True)
class Conflict:
    """Someone else has written since the record was read; this change was not made."""


@dataclass(frozen=True)
class LimitExceeded:
    """A new session would be beyond a limit; this change was not made."""

    limit: str
    """Which, for people: `10000 sessions` or `1073741824 bytes`."""
    retry_after: float
    """Seconds until the next session is over, if it gets no piece until then."""


WriteOutcome = Written | Conflict | LimitExceeded


class StoreTotals(NamedTuple):
    """All open sessions of one model."""

    sessions: int
    bytes: int
    """Of all records that are not yet removed, those of sessions that have ended or lapsed too."""
    oldest_seconds: float | None
    """Since the piece of the session that has waited longest; None where there is no session."""


class Store(Protocol):
    """The sessions of one model, shared by all its workers.

    A session that was idle for too long is as if it had never been, whether or not its record has been removed yet.
    """

    def read(self, ids: Sequence[str]) -> list[StoredRecord | None]:
        """The record of each session, in order; None where there is none.

        Raises:
            StoreUnavailable: nothing can be read.
        """

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Make each change on its own: all of a change or nothing of it, and none that is made can be lost by a crash
        of any process. The ids of one call are different.

        Raises:
            StoreUnavailable: no change was made; over a network as far as can be known, for it may be the answer that
                was lost.
        """

    def totals(self) -> StoreTotals:
        """What there is.

        Raises:
            StoreUnavailable: nothing can be read.
        """

    def expired(self) -> int:
        """How many sessions this store object has removed since the last call because they were idle."""
