"""Time of a store, by which sessions expire: a clock that jumps ends no session.

The time is kept in the store, and passes only as far as two clocks agree:

- the shared clock, which all users of the store read: the monotonic clock of the host for a file, the server's clock
  for a server. It counts from the last write of any user.
- the local clock of a user: the wall clock for a file, the monotonic clock of the host for a server. Only differences
  of its readings count, so that a constant error has no effect.

Seconds that local clocks count and the shared clock denies are stored as `uncounted`. Otherwise the next user would
count them again, and end a session too early. One wrong clock ends no session, to within `JITTER_SECONDS`.

A new user takes the stored time. Its first write leaves uncounted what has passed by the shared clock. So the time
stands still while there is no user, and passes less fast if the shared clock differs between users for good.
"""

from __future__ import annotations

import time
from typing import NamedTuple

JITTER_SECONDS = 0.1
"""Seconds by which readings of the two clocks may be apart, as calls take longer or shorter.

That much of the shared clock is left to the next write where the local clock has not counted it yet. Otherwise time
would lose it at every write.
"""


class Reading(NamedTuple):
    """Readings of the two clocks, in seconds."""

    shared: float
    local: float


class StoredTime(NamedTuple):
    """Time of a store at its last write, and the shared clock then, in seconds.

    Local clocks have counted `uncounted` more seconds in all, which the shared clock denied.
    """

    time: float
    shared: float
    uncounted: float = 0.0

    @property
    def local_estimate(self) -> float:
        """Time by local clocks alone."""
        return self.time + self.uncounted


class LocalTime(NamedTuple):
    """Store time by the local clock, and the local clock's reading at that moment."""

    local_estimate: float
    reading: float

    def at(self, reading: float) -> float:
        """Return the store time by the local clock at another reading."""
        return self.local_estimate + max(0.0, reading - self.reading)

    def synchronized(self, stored: StoredTime, reading: float) -> LocalTime:
        """Return the time at a reading, which is no less than at the last write of any user."""
        return LocalTime(max(stored.local_estimate, self.at(reading)), reading)


def host_clocks() -> Reading:
    """Read the clocks for a store on this host: the monotonic clock is shared, the wall clock is local."""
    return Reading(time.monotonic(), time.time())


def current_time(stored: StoredTime, local: LocalTime | None, now: Reading) -> StoredTime:
    """Return the time of a store now: that of its last write, and what both clocks agree has passed since.

    >>> written, local = StoredTime(1000.0, shared=50.0), LocalTime(1000.0, reading=7.0)
    >>> current_time(written, local, Reading(shared=60.0, local=17.0))
    StoredTime(time=1010.0, shared=60.0, uncounted=0.0)

    One of the clocks jumps ahead, or the shared one back:

    >>> [current_time(written, local, now).time for now in (Reading(661.0, 17.0), Reading(60.0, 618.0))]
    [1010.0, 1010.0]
    >>> current_time(written, local, Reading(shared=0.0, local=17.0))
    StoredTime(time=1000.0, shared=0.0, uncounted=10.0)

    The local clock was read 1/16 s earlier than the shared one, which is left to the next write:

    >>> current_time(written, local, Reading(60.0, 17.0 - 1 / 16))
    StoredTime(time=1009.9375, shared=59.9375, uncounted=0.0)

    A new user takes the stored time:

    >>> current_time(written, None, Reading(60.0, 17.0))
    StoredTime(time=1000.0, shared=60.0, uncounted=10.0)
    """
    by_shared = max(0.0, now.shared - stored.shared)
    if local is None:
        return StoredTime(stored.time, now.shared, stored.uncounted + by_shared)
    by_local = max(0.0, local.at(now.local) - stored.local_estimate)
    passed = min(by_local, by_shared)
    shared = now.shared - min(by_shared - passed, JITTER_SECONDS)
    return StoredTime(stored.time + passed, shared, stored.uncounted + (by_local - passed))
