"""Whether a change is made: the rules of every store, apart from how a store keeps its records."""

from __future__ import annotations

from typing import NamedTuple

from .store import Change, Conflict, Limits, Outcome, TooMany, Written


class Kept(NamedTuple):
    """What a store knows of a record without reading it."""

    revision: int
    ended: bool
    last: float
    """When it was written, in seconds."""
    size: int


class Tally(NamedTuple):
    """What a store holds. What has lapsed counts until it is removed."""

    open: int
    """Sessions that have not ended."""
    bytes: int
    """Of all records."""
    expired: int = 0
    """Sessions that were removed because they were idle."""


def has_lapsed(kept: Kept, limits: Limits, now: float) -> bool:
    """Whether it is as if the record had never been.

    >>> limits = Limits(sessions=1, bytes=1, idle_seconds=900, retry_seconds=60)
    >>> [has_lapsed(Kept(1, ended=False, last=100, size=1), limits, now) for now in (1000, 1001)]
    [False, True]
    """
    return kept.last < now - (limits.retry_seconds if kept.ended else limits.idle_seconds)


def admit(change: Change, kept: Kept | None, tally: Tally, limits: Limits, now: float) -> tuple[Outcome, Tally]:
    """Whether `change` is made in the place of `kept`, and what the store holds then.

    An open session goes on whatever the limits say; they hold for new ones. A `TooMany` does not know yet when there
    will be room.
    """
    lapsed = kept is not None and has_lapsed(kept, limits, now)
    present = None if lapsed else kept
    is_new = present is None or present.ended
    revision = None if present is None else present.revision
    if change.revision != revision and not (change.revision is None and is_new):
        return Conflict(), tally
    after = _after(change, kept, tally, lapsed)
    if is_new and not change.ended and after.open > limits.sessions:
        return TooMany(f"{limits.sessions} sessions", 0.0), tally
    if is_new and after.bytes > limits.bytes:
        return TooMany(f"{limits.bytes} bytes", 0.0), tally
    return Written(), after


def _after(change: Change, kept: Kept | None, tally: Tally, lapsed: bool) -> Tally:
    was_open = kept is not None and not kept.ended
    return Tally(
        tally.open - was_open + (not change.ended),
        tally.bytes - (kept.size if kept else 0) + len(change.record),
        tally.expired + (was_open and lapsed),
    )
