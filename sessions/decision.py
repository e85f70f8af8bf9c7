"""What becomes of a piece: it is applied, it has been applied already, or it is refused. Deciding only.

A step number is how many timesteps were applied before a piece. A client that sends it can send a piece again whenever
it got no answer: a piece is applied once, whatever is lost or doubled on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .session import Reply, Session


@dataclass(frozen=True)
class ChunkRequest:
    """The next timesteps of a sequence, as a client sent them."""

    id: str
    start: bool
    """A new session begins with it."""
    end: bool
    """The session is over after it."""
    step: int | None
    """Timesteps applied before it, as far as the client knows; None where it did not say."""
    digest: bytes
    """Of its content."""
    timesteps: int


@dataclass(frozen=True)
class StartSession:
    """Apply it to a new session. Its record may stand in the place of one that is over."""


@dataclass(frozen=True)
class ContinueSession:
    """Apply it to this session."""

    session: Session


@dataclass(frozen=True)
class Replay:
    """It was applied before, and this was the answer."""

    reply: Reply


@dataclass(frozen=True)
class Reject:
    """It is not applied: HTTP status, a word for programs, a sentence for people."""

    status: Literal[409, 410]
    kind: Literal["SessionUnknown", "SessionExists", "SessionEnded", "ModelChanged", "StepGap", "StepTaken"]
    message: str


Decision = StartSession | ContinueSession | Replay | Reject


def decide(piece: ChunkRequest, session: Session | None, model: bytes) -> Decision:
    """What becomes of `piece`, where the store holds `session` and `model` is the one that would apply it."""
    if piece.start and piece.step:
        return Reject(
            409, "StepGap", f"a session starts at step 0, and this piece is for step {piece.step}: leave `start` out"
        )
    if session is None:
        return StartSession() if piece.start else _unknown()
    return _with_record(piece, session, model)


def _with_record(piece: ChunkRequest, session: Session, model: bytes) -> Decision:
    # Nobody can go on from what another model has left, so a start is a new beginning even if it came before.
    foreign = session.model != model
    if _was_applied(piece, session) and not (piece.start and foreign):
        return Replay(session.last_reply)
    if session.ended or foreign:
        return StartSession() if piece.start else _over(session)
    if piece.start:
        return Reject(
            409,
            "SessionExists",
            f"a session of this id is open, after {session.steps} timesteps: go on with it without `start`, end it, "
            f"or start one of another id",
        )
    return _next(piece, session)


def _was_applied(piece: ChunkRequest, session: Session) -> bool:
    """Whether it is the session's last piece once more.

    Without a step number two pieces of the same content cannot be told apart, except for the first of a session.
    """
    step = 0 if piece.start else piece.step
    return (
        step == session.last_start
        and piece.digest == session.last_digest
        and piece.end == session.ended
        and piece.timesteps == session.steps - session.last_start
    )


def _next(piece: ChunkRequest, session: Session) -> Decision:
    # A piece without timesteps leaves its step to the next one, so what is due goes before what was taken.
    if piece.step is None or piece.step == session.steps:
        return ContinueSession(session)
    if piece.step == session.last_start:
        return Reject(
            409,
            "StepTaken",
            f"another piece was applied at step {piece.step}; the session is at step {session.steps} now",
        )
    return Reject(409, "StepGap", f"this piece is for step {piece.step}, and the session is at step {session.steps}")


def _unknown() -> Reject:
    return Reject(
        410,
        "SessionUnknown",
        "there is no session of this id: it never began, has ended, or was idle too long; send `start` to begin one",
    )


def _over(session: Session) -> Reject:
    if session.ended:
        return Reject(
            410,
            "SessionEnded",
            f"the session has ended, after {session.steps} timesteps; send `start` to begin another",
        )
    return Reject(
        410,
        "ModelChanged",
        f"the model was replaced by one that cannot go on from this session's state, after {session.steps} timesteps; "
        f"send `start` to begin another",
    )
