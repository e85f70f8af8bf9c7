"""Admission rules of the stores: whether a session may start or grow, within the limits of its model.

Pure functions. The network store has the same rules in its scripts (`redis/scripts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

from .settings import Limits
from .store import Conflict, LimitExceeded, RecordUpdate, WriteOutcome, Written

SESSIONS = "{} sessions"
UNCONFIRMED = "{} sessions that were started without an id and have had one request"
OF_CLIENT = "{} sessions of one client"
BYTES = "{} bytes"
"""Limits in words."""


class RecordInfo(NamedTuple):
    """Facts about a stored record."""

    revision: int
    ended: bool
    last: float
    """Time of the write, in seconds."""
    size: int
    unconfirmed: bool = False


class StoreUsage(NamedTuple):
    """Usage of a store. Expired records count until they are removed."""

    open: int
    """Sessions that have not ended."""
    bytes: int
    """Size of all records."""
    expired: int = 0
    """Idle sessions that were removed."""


class OtherSessions(NamedTuple):
    """Other open sessions when one starts. Expired ones count until they are removed."""

    unconfirmed: int = 0
    of_client: int = 0
    """Those of the same client."""


def is_expired(info: RecordInfo, limits: Limits, now: float) -> bool:
    """Whether the record counts as missing: its session was idle, or has ended, for too long.

    >>> limits = Limits(sessions=1, bytes=1, idle_seconds=900, retry_seconds=60)
    >>> [is_expired(RecordInfo(1, ended=False, last=100, size=1), limits, now) for now in (1000, 1001)]
    [False, True]
    """
    open_seconds = limits.lifetime if info.unconfirmed else limits.idle_seconds
    return info.last < now - (limits.retry_seconds if info.ended else open_seconds)


def admit(
    change: RecordUpdate,
    current: RecordInfo | None,
    usage: StoreUsage,
    limits: Limits,
    now: float,
    others: OtherSessions,
) -> tuple[WriteOutcome, StoreUsage]:
    """Decide whether `change` replaces `current`; returns the outcome and the store's usage after it.

    The `retry_after` of a `LimitExceeded` is 0: the store sets it. `others` is needed where a session starts
    that is unconfirmed or has a client.
    """
    expired = current is not None and is_expired(current, limits, now)
    present = None if expired else current
    is_new = present is None or present.ended
    revision = None if present is None else present.revision
    if change.revision != revision and not (change.revision is None and is_new):
        return Conflict(), usage
    after = _after(change, current, usage, expired)
    beyond = _beyond_sessions(change, after, limits, others) if is_new and not change.ended else None
    beyond = beyond or _beyond_bytes(change, is_new, usage, after, limits)
    return (Written(), after) if beyond is None else (LimitExceeded(beyond, 0.0), usage)


def admit_all(
    changes: Sequence[RecordUpdate], current: Sequence[RecordInfo | None], usage: StoreUsage, limits: Limits, now: float
) -> StoreUsage | None:
    """Return the usage after all changes if each continues an open session and no limit is near.

    It equals the result of `admit` for one change after the other. None: the changes must be decided in that way.
    """
    infos = [info for info in current if info is not None]
    if not infos or len(infos) < len(changes):
        return None
    # Columns are compared in a tenth of the time that a loop over the rows takes.
    _, records, read, ends, unconfirmed, clients = zip(*changes)
    revisions, ended, last, sizes, were_unconfirmed = zip(*infos)
    if revisions != read or min(last) < now - limits.idle_seconds:
        return None
    if any(ended) or any(were_unconfirmed) or any(ends) or any(unconfirmed) or clients.count(None) < len(clients):
        return None
    differences = [*map(sub, map(len, records), sizes)]
    if usage.bytes + sum([one for one in differences if one > 0]) > limits.common_bytes:
        return None
    return usage._replace(bytes=usage.bytes + sum(differences))


def _beyond_sessions(change: RecordUpdate, after: StoreUsage, limits: Limits, others: OtherSessions) -> str | None:
    if after.open > limits.sessions:
        return SESSIONS.format(limits.sessions)
    if change.unconfirmed and others.unconfirmed >= limits.unconfirmed:
        return UNCONFIRMED.format(limits.unconfirmed)
    if change.client is not None and limits.client_sessions is not None and others.of_client >= limits.client_sessions:
        return OF_CLIENT.format(limits.client_sessions)
    return None


def _beyond_bytes(
    change: RecordUpdate, is_new: bool, usage: StoreUsage, after: StoreUsage, limits: Limits
) -> str | None:
    # A record that shrinks is always accepted, even if the limit was lowered below the stored size.
    if not is_new and after.bytes <= usage.bytes:
        return None
    most = limits.unconfirmed_bytes if change.unconfirmed else limits.common_bytes
    if not is_new and len(change.record) <= limits.own_bytes:
        most = limits.bytes
    return BYTES.format(most) if after.bytes > most else None


def _after(change: RecordUpdate, current: RecordInfo | None, usage: StoreUsage, expired: bool) -> StoreUsage:
    was_open = current is not None and not current.ended
    return StoreUsage(
        usage.open - was_open + (not change.ended),
        usage.bytes - (current.size if current else 0) + len(change.record),
        usage.expired + (was_open and expired),
    )
