"""Idempotency decision on a request of a session: it is applied, replayed or rejected. Pure functions.

A step number is the number of timesteps that were applied before a request. A client that sends it can repeat a request
whenever it got no response: each request is applied once, even if requests or responses are lost or repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Union

from .session import Reply, Session


@dataclass(frozen=True)
class ChunkRequest:
    """A request of a session: the next timesteps of its sequence."""

    start: bool
    """Whether a new session starts with it."""
    end: bool
    """Whether the session ends with it."""
    step: int | None
    """Timesteps applied before it, as the client knows; None if the client did not send the number."""
    digest: bytes
    timesteps: int


@dataclass(frozen=True)
class StartSession:
    """Apply the request to a new session, whose record may replace that of an ended one."""


class ContinueSession(NamedTuple):
    """Apply the request to this session."""

    session: Session


@dataclass(frozen=True)
class Replay:
    """Send the stored reply: the request was applied before."""

    reply: Reply


@dataclass(frozen=True)
class Reject:
    """Refuse the request with an error type and a message."""

    kind: Literal["SessionUnknown", "SessionExists", "SessionEnded", "ModelChanged", "StepGap", "StepTaken"]
    message: str


Decision = Union[StartSession, ContinueSession, Replay, Reject]


def decide(request: ChunkRequest, session: Session | None, model: bytes) -> Decision:
    """Decide on a request of the stored `session`; `model` identifies the model that would apply it."""
    if request.start and request.step:
        return Reject(
            "StepGap",
            f"a session starts at step 0, and this request, which starts one, is for step {request.step}: send the id "
            f"of its session, without `start`",
        )
    if session is None and not request.start:
        return Reject(
            "SessionUnknown",
            "there is no session with this id: it was not started, has ended or expired; send `start` to start one",
        )
    return StartSession() if session is None else _with_record(request, session, model)


def _with_record(request: ChunkRequest, session: Session, model: bytes) -> Decision:
    # No model can resume the state of another one, so a start begins a new session even if it was applied before.
    foreign = session.model != model
    if _was_applied(request, session) and not (request.start and foreign):
        return Replay(session.last_reply)
    if session.ended or foreign:
        return StartSession() if request.start else _ended_or_changed(session)
    if request.start:
        return Reject(
            "SessionExists",
            f"a session with this id is open, after {session.steps} timesteps: continue it without `start`, end it, or "
            f"start one with another id",
        )
    return _next(request, session)


def _was_applied(request: ChunkRequest, session: Session) -> bool:
    """Whether the request repeats the session's last one.

    Without a step number two requests of the same content cannot be distinguished, except for the first of a session.
    """
    step = 0 if request.start else request.step
    return (
        step == session.last_start
        and request.digest == session.last_digest
        and request.end == session.ended
        and request.timesteps == session.steps - session.last_start
    )


def _next(request: ChunkRequest, session: Session) -> Decision:
    # A request without timesteps has the same step as the next one, so the due step is checked before the last one.
    if request.step is None or request.step == session.steps:
        return ContinueSession(session)
    if request.step == session.last_start:
        return Reject(
            "StepTaken",
            f"another request was applied at step {request.step}; the session is at step {session.steps} now",
        )
    return Reject("StepGap", f"this request is for step {request.step}, and the session is at step {session.steps}")


def _ended_or_changed(session: Session) -> Reject:
    if session.ended:
        return Reject(
            "SessionEnded", f"the session has ended, after {session.steps} timesteps; send `start` to start another"
        )
    return Reject(
        "ModelChanged",
        f"after {session.steps} timesteps, the session has the state of another model, as of another version: send its "
        "requests there, or `start` to start another in its place",
    )
