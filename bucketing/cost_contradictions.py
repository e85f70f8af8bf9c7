"""Contradictions among measured costs: a bucket that costs more than a larger one.

A bucket is larger than another one if it has as many rows and timesteps at least. No program computes more for fewer of
them, so such costs were mostly measured while other work ran on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .shapes import Bucket

NOISE = 1.25
"""Largest ratio of two measurements of the same cost on a machine without other work."""
_TIMER_MS = 0.01
"""Difference of two short calls that may be noise."""


class Contradiction(NamedTuple):
    """A bucket, a larger one, and their milliseconds."""

    smaller: Bucket
    larger: Bucket
    smaller_ms: float
    larger_ms: float


def contradictions(costs: Mapping[Bucket, float]) -> tuple[Contradiction, ...]:
    """Find the buckets that cost more than a larger one by more than noise, the largest ratio first.

    Each has the cheapest of its larger buckets beside it. `costs` are milliseconds of calls of one program.

    >>> (found,) = contradictions({Bucket(1, 32): 0.62, Bucket(8, 32): 0.2, Bucket(8, 64): 0.4})
    >>> found.smaller, found.larger
    (Bucket(batch=1, length=32), Bucket(batch=8, length=32))
    """
    found = [
        Contradiction(bucket, cheapest, milliseconds, costs[cheapest])
        for bucket, milliseconds in costs.items()
        for cheapest in [min((one for one in costs if _holds(one, bucket)), key=costs.__getitem__)]
        if milliseconds > NOISE * costs[cheapest] + _TIMER_MS
    ]
    return tuple(sorted(found, key=lambda one: one.larger_ms / one.smaller_ms))


def _holds(larger: Bucket, smaller: Bucket) -> bool:
    return larger.batch >= smaller.batch and larger.length >= smaller.length
