"""The pace of a batch that is decoded, or run, in pieces: whether the clock leaves time for another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .responses import RequestError


@dataclass
class Pace:
    """The time of a batch that is decoded, or run, in pieces."""

    clock: Callable[[], float]
    """A function that returns seconds."""
    looked: float
    """The seconds that it returned last."""
    end: float
    """The seconds at which the last piece must be done."""
    longest: float = 0.0
    """Seconds of the longest piece so far."""

    def allows_another(self) -> bool:
        """Whether a piece as long as the longest so far would be done in time."""
        now = self.clock()
        self.longest = max(self.longest, now - self.looked)
        self.looked = now
        return now + self.longest <= self.end


def out_of_time() -> RequestError:
    """Refuse a request for which the requests before it, in its batch, left no time."""
    message = "the requests that were read together with it took all their time; nothing was computed for it"
    return RequestError("DeadlineExceeded", message, retry_after=1.0)
