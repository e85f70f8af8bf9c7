"""Deadlines of requests: what clients ask for, and which requests would miss theirs.

A deadline is an absolute time in a header, or a time to live from the arrival at the worker on. Hosts tell no
arrival time, so the wait in their queue counts only for an absolute one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..bucketing.bisection import first_true
from .responses import RequestError, abbreviate, invalid

DEADLINE_HEADER = "x-request-deadline-ms"
"""Unix time in milliseconds by which the response is wanted."""
TIMEOUT_HEADER = "x-request-timeout-ms"
"""Milliseconds from the arrival at the worker on."""
LARGEST_SKEW_MS = 300_000
"""A deadline that is further in the past, or in the future, shows that the clocks differ."""
_NAMES = frozenset((DEADLINE_HEADER, TIMEOUT_HEADER))


class Turn(NamedTuple):
    """A request that waits for its computation."""

    remaining_ms: float
    """Milliseconds until its deadline."""
    lengths: Sequence[int]
    """Timesteps of its sequences."""


def remaining_ms(
    headers: Mapping[str, object], own_timeout_ms: float | None, default_ms: float, elapsed_ms: float, unix_ms: float
) -> float:
    """Return the milliseconds that a request has left.

    The time is `unix_ms`, `elapsed_ms` after the arrival at the worker. `own_timeout_ms` is the one in its body. The
    shortest counts, and none is longer than `default_ms`.

    >>> remaining_ms({"X-Request-Timeout-Ms": "50"}, None, 1000.0, 1.0, 0.0)
    49.0
    >>> remaining_ms({"x-request-deadline-ms": "1700000000040"}, None, 1000.0, 1.0, 1700000000000.0)
    40.0

    Raises:
        RequestError: 400, a header is no number, or the clocks differ.
    """
    remaining = (default_ms if own_timeout_ms is None else min(default_ms, own_timeout_ms)) - elapsed_ms
    for key, value in headers.items():
        if key[:1] in "xX" and (name := key.lower()) in _NAMES:
            given = _number(name, value)
            remaining = min(remaining, _until(given, unix_ms) if name == DEADLINE_HEADER else given - elapsed_ms)
    return remaining


def names_deadline(headers: Iterable[str]) -> bool:
    """Whether one of these names of headers is that of a deadline.

    >>> names_deadline({"Accept", "Host"}), names_deadline({"Accept", "X-Request-Timeout-Ms"})
    (False, True)
    """
    return not _NAMES.isdisjoint(map(str.lower, headers))


def late(turns: Sequence[Turn], work_ms: Callable[[Sequence[int]], float]) -> set[int]:
    """Return the indices of the requests of a batch that would be answered after their deadline.

    A batch is answered as a whole, so each request waits for the work of all. Those with the nearest deadlines are
    left out until the rest is in time: nothing is computed for a response that comes too late.

    >>> sorted(late([Turn(50, [2]), Turn(10, [2]), Turn(35, [2])], work_ms=lambda lengths: 10.0 * sum(lengths)))
    [1, 2]
    """
    order = sorted(range(len(turns)), key=lambda place: (turns[place].remaining_ms, -place))

    def in_time(dropped: int) -> bool:
        if dropped == len(order):
            return True
        nearest = turns[order[dropped]].remaining_ms
        return nearest > 0 and work_ms([one for place in order[dropped:] for one in turns[place].lengths]) <= nearest

    dropped = first_true(range(len(order) + 1), in_time)
    return set(order[:dropped])


def too_late(turn: Turn) -> RequestError:
    """Refuse a request whose deadline is past, or comes before its response could."""
    if turn.remaining_ms <= 0:
        said = f"the deadline was {-turn.remaining_ms:.0f} ms ago when the request was read"
    else:
        said = f"the deadline comes in {turn.remaining_ms:.0f} ms, before the requests that were read together are done"
    return RequestError("DeadlineExceeded", f"{said}; nothing was computed for it", retry_after=1.0)


def _number(name: str, value: object) -> float:
    text = value if isinstance(value, str) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise invalid(f"header {name}: expected whole milliseconds, got {abbreviate(value)}")
    return float(text)


def _until(deadline: float, unix_ms: float) -> float:
    until = deadline - unix_ms
    if abs(until) > LARGEST_SKEW_MS:
        raise invalid(
            f"header {DEADLINE_HEADER}: expected Unix milliseconds within {LARGEST_SKEW_MS // 60_000} minutes of this "
            f"host's clock ({unix_ms:.0f}), got {deadline:.0f}: the clocks differ"
        )
    return until
