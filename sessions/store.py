"""Store protocol: records of sessions between their requests, and outcomes of writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Union


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
    unconfirmed: bool = False
    """Whether the session was started without an id, by this request."""
    client: str | None = None
    """The client that starts the session; None where the host names none, or an open one continues."""


@dataclass
class Written:
    """The record is in the store."""

    revision: int | None = field(default=None, compare=False)
    """Its revision, where the store says it."""


@dataclass(frozen=True)
class Conflict:
    """Another writer was first: the record has changed since it was read; this change was not made."""


@dataclass(frozen=True)
class LimitExceeded:
    """The change would be beyond a limit, and was not made."""

    limit: str
    """The limit in words: `10000 sessions` or `1073741824 bytes`."""
    retry_after: float
    """Seconds until the next session expires, unless it gets a request until then."""


WriteOutcome = Union[Written, Conflict, LimitExceeded]


class StoreTotals(NamedTuple):
    """Totals of one model's sessions."""

    sessions: int
    bytes: int
    """Size of all records that are not yet removed, those of ended and expired sessions included."""
    oldest_seconds: float | None
    """Time since the last request of the session that has waited longest; None where there is no session."""


class Store(Protocol):
    """Store of one model's sessions, shared by all its workers.

    A session that was idle for too long counts as missing, whether or not its record has been removed yet. Time is that
    of the store (`sessions.store_time`). The records never take more than `Limits.bytes`. A store may be on several
    servers. Then an error takes the place of each session whose server cannot be used.
    """

    model: str
    """The name of the model."""

    def read(
        self, ids: Sequence[str], known: Mapping[str, int] | None = None
    ) -> Sequence[StoredRecord | StoreUnavailableError | None]:
        """Return the record of each session, in order; None where there is none.

        `known` has revisions by ids. A record that has the known one may be left out, and is empty then: its reader has
        it.

        Raises `StoreUnavailableError`: nothing can be read.
        """

    def write(self, changes: Sequence[RecordUpdate]) -> Sequence[WriteOutcome | StoreUnavailableError]:
        """Make each change separately: completely or not at all.

        A crash of a process loses no change that was made. The ids of one call are different. A call without changes
        tells whether anything can be written.

        Raises `StoreUnavailableError`: no change was made. Over a network this is not certain: the response may have
        been lost.
        """

    def totals(self) -> StoreTotals:
        """Count open sessions and bytes. Raises `StoreUnavailableError`: nothing can be read."""

    def expired(self) -> int:
        """Return the number of idle sessions that this store object has removed since the last call."""

    def close(self) -> None:
        """Close the connections of this store object; a later call opens them again."""
