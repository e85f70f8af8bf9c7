"""Errors of the core."""

from __future__ import annotations

BUG = "this is a bug, please report it: "


class SequenceTooLong(ValueError):
    """A sequence longer than every bucket. `available` has the lengths of the buckets, or the longest one alone."""

    def __init__(self, length: int, available: tuple[int, ...]) -> None:
        buckets = f" (buckets: {', '.join(map(str, available))})" if len(available) > 1 else ""
        super().__init__(f"a sequence of {length} timesteps fits no bucket: the longest holds {available[-1]}{buckets}")


class InvariantError(RuntimeError):
    """A violated invariant: a bug, not the fault of a request."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{BUG}{what}")
