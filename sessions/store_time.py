"""Time of a store, by which sessions expire, and which no clock that jumps can move.

It is kept in the store, and passes as far as two clocks agree that it has passed:

- the shared clock, which all users of the store read: the steady clock of the host for a file, the server's for a
  server. It counts from the last write of any user.
- the user's own clock, of which only differences between two of its readings count, so that a constant error has no
  effect: the wall clock for a file, the steady clock of the host for a server. It counts from the user's last
  reading of the time.

So one wrong clock, once or for good, ends no session, to within `JITTER_SECONDS`. The seconds that own clocks count and
the shared clock denies are stored too, as `uncounted`. Otherwise the next user would count them once more, and end a
session that was used at the denied write too early.

A new user, which has not written, takes the stored time. While there is no user, the time stands still: sessions live
longer by that, and never shorter. At its first write, a new user leaves uncounted what has passed by the shared clock.
If that is behind just then, another user may count those seconds.

If the shared clock differs between users for good, time passes less fast: not from the write of one whose clock is
ahead to that of one whose clock is behind.
"""

from __future__ import annotations

import time
from typing import NamedTuple

JITTER_SECONDS = 0.1
"""Seconds by which readings of the two clocks may be apart, as calls take longer or shorter.

That much of the shared clock is left to the next write where the own clock has not counted it yet. Otherwise time would
lose it at every write.
"""


class Reading(NamedTuple):
    """Readings of the two clocks, in seconds."""

    shared: float
    own: float


class StoredTime(NamedTuple):
    """Time of a store at its last write, and the shared clock then, in seconds.

    Users' own clocks have counted `uncounted` more seconds in all, which the shared clock denied.
    """

    time: float
    shared: float
    uncounted: float = 0.0

    @property
    def by_own(self) -> float:
        """Time by own clocks alone."""
        return self.time + self.uncounted


class SeenTime(NamedTuple):
    """Time by own clocks alone as a user last computed it, and its own clock then, in seconds."""

    by_own: float
    own: float


def host_clocks() -> Reading:
    """Read the clocks for a store on this host: the steady clock is shared, the wall clock is own."""
    return Reading(time.monotonic(), time.time())


def estimate(seen: SeenTime, own: float) -> float:
    """Return the time by own clocks alone."""
    return seen.by_own + max(0.0, own - seen.own)


def synchronize(seen: SeenTime, stored: StoredTime, own: float) -> SeenTime:
    """Return the time by own clocks alone now, which is no less than at the last write of any user."""
    return SeenTime(max(stored.by_own, estimate(seen, own)), own)


def current_time(stored: StoredTime, seen: SeenTime | None, now: Reading) -> StoredTime:
    """Return the time of a store now: that of its last write, and what both clocks agree has passed since.

    >>> written, seen = StoredTime(1000.0, shared=50.0), SeenTime(1000.0, own=7.0)
    >>> current_time(written, seen, Reading(shared=60.0, own=17.0))
    StoredTime(time=1010.0, shared=60.0, uncounted=0.0)

    One of the clocks jumps ahead, or the shared one back:

    >>> [current_time(written, seen, now).time for now in (Reading(661.0, 17.0), Reading(60.0, 618.0))]
    [1010.0, 1010.0]
    >>> denied = current_time(written, seen, Reading(shared=0.0, own=17.0))
    >>> denied
    StoredTime(time=1000.0, shared=0.0, uncounted=10.0)

    One second after a write at that time, the shared clock is right again. A user that has not written since takes
    that second alone:

    >>> current_time(denied, seen, Reading(shared=61.0, own=18.0)).time
    1001.0

    The own clock was read 1/16 s earlier than the shared one, which is left to the next write:

    >>> current_time(written, seen, Reading(60.0, 17.0 - 1 / 16))
    StoredTime(time=1009.9375, shared=59.9375, uncounted=0.0)

    A new user takes the stored time:

    >>> current_time(written, None, Reading(60.0, 17.0))
    StoredTime(time=1000.0, shared=60.0, uncounted=10.0)
    """
    by_shared = max(0.0, now.shared - stored.shared)
    if seen is None:
        return StoredTime(stored.time, now.shared, stored.uncounted + by_shared)
    by_own = max(0.0, estimate(seen, now.own) - stored.by_own)
    passed = min(by_own, by_shared)
    shared = now.shared - min(by_shared - passed, JITTER_SECONDS)
    return StoredTime(stored.time + passed, shared, stored.uncounted + (by_own - passed))
