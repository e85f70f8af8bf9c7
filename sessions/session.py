"""One streaming session between two of its pieces, and the bytes that a store keeps of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reply:
    """The answer to a piece, as it was sent: a retried piece gets the very same."""

    body: bytes
    content_type: str


@dataclass(frozen=True)
class Session:
    """What a session is after a piece was applied."""

    steps: int
    """Timesteps applied since it began."""
    last_start: int
    """Timesteps that were applied before the last piece: a piece that begins there is that piece once more."""
    last_digest: bytes
    """Of the last piece's content, to tell it from another piece that begins at the same timestep."""
    last_reply: Reply
    state: bytes
    """What the next piece goes on from: the model's carried values. Empty once the session has ended."""
    model: bytes
    """Which models can go on from this state: 16 bytes."""
    ended: bool = False
    """The last piece was its end. Kept for a while, for that piece may be sent again."""
