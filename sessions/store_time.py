"""Time of a store, by which sessions expire, and which no clock that jumps can move.

It is kept in the store, and passes as far as two clocks agree that it has passed:

- the shared clock, which all users of the store read: the steady clock of the host for a file, the server's for a
  server. It counts from the last write of any user.
- the user's own clock, of which only differences between two of its readings count, so that a constant error has no
  effect: the wall clock for a file, the steady clock of the host for a server. It counts from the user's last reading.

So one wrong clock, once or for good, ends no session, and a new user takes the stored time. While there
is no user, the time stands still: sessions live longer by that, and never shorter.
"""

from __future__ import annotations

import time
from typing import NamedTuple


class Reading(NamedTuple):
    """Readings of the two clocks, in seconds."""

    shared: float
    own: float


class StoredTime(NamedTuple):
    """Time of a store at its last write, and the shared clock then, in seconds."""

    time: float
    shared: float


class SeenTime(NamedTuple):
    """Time of the store as a user last computed it, and the user's own clock then, in seconds."""

    time: float
    own: float


def host_clocks() -> Reading:
    """Read the clocks for a store on this host: the steady clock is shared, the wall clock is own."""
    return Reading(time.monotonic(), time.time())


def estimate(seen: SeenTime | None, own: float) -> float | None:
    """Return the time by the user's own clock alone; None if it has not read the time before."""
    return None if seen is None else seen.time + max(0.0, own - seen.own)


def current_time(stored: StoredTime, seen: SeenTime | None, now: Reading) -> float:
    """Return the time of a store now: that of its last write, and what both clocks agree has passed since.

    >>> written, seen = StoredTime(1000.0, shared=50.0), SeenTime(1000.0, own=7.0)
    >>> current_time(written, seen, Reading(shared=60.0, own=17.0))
    1010.0
    >>> [current_time(written, seen, now) for now in (Reading(661.0, 17.0), Reading(60.0, 618.0), Reading(0.0, 17.0))]
    [1010.0, 1010.0, 1000.0]
    >>> current_time(written, None, Reading(60.0, 17.0))
    1000.0
    """
    by_own = estimate(seen, now.own)
    if by_own is None:
        return stored.time
    return max(stored.time, min(by_own, stored.time + (now.shared - stored.shared)))
