"""Requests that a session must refuse, and after which it continues as if they had not been sent."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from chaos.model import TOKENS
from chaos.script import LONGEST_CHUNK
from chaos.verdict import END, ID, START, STEP

from .archives import STREAM
from .bad_requests import BadRequest, Refusal
from .request import json_request


class OpenSession(NamedTuple):
    """A session of the client, between two of its requests."""

    id: str
    step: int
    """Timesteps so far, at least one."""


def _bad(value: object, status: int, kind: str, **fields: str) -> BadRequest:
    headers = {_FIELDS[name]: text for name, text in fields.items()}
    return BadRequest(json_request(STREAM, value, headers), Refusal(status, kind))


_FIELDS = {"id": ID, "start": START, "end": END, "step": STEP}


def _at(session: OpenSession, value: object, status: int, kind: str, ahead: int = 0) -> BadRequest:
    return _bad(value, status, kind, id=session.id, step=str(session.step + ahead))


def _unknown() -> str:
    return f"soak-unknown-{secrets.token_hex(8)}"


SESSION_KINDS: dict[str, Callable[[OpenSession], BadRequest]] = {
    "an unknown session": lambda _: _bad([1], 410, "SessionUnknown", id=_unknown()),
    "an unknown session with a step": lambda _: _bad([1], 410, "SessionUnknown", id=_unknown(), step="7"),
    "the end of an unknown session": lambda _: _bad([1], 410, "SessionUnknown", id=_unknown(), end="true"),
    "an id with other characters": lambda _: _bad([1], 400, "InvalidSessionId", id="a b/c", start="true"),
    "an id without end": lambda _: _bad([1], 400, "InvalidSessionId", id="x" * 129, start="true"),
    "a step that is no number": lambda open_: _bad([1], 400, "InvalidInput", id=open_.id, step="x"),
    "a start that is no truth": lambda _: _bad([1], 400, "InvalidInput", id=_unknown(), start="perhaps"),
    "a gap": lambda open_: _at(open_, [1], 409, "StepGap", ahead=3),
    "a start of an open session": lambda open_: _bad([1, 2], 409, "SessionExists", id=open_.id, start="true"),
    "a bad token in a session": lambda open_: _at(open_, [1, TOKENS], 400, "InvalidInput"),
    "texts in a session": lambda open_: _at(open_, ["a"], 400, "InvalidInput"),
    "too long a chunk": lambda open_: _at(open_, [1] * (LONGEST_CHUNK + 1), 413, "SequenceTooLong"),
    "two sequences in a session": lambda open_: _at(open_, {"instances": [[1], [2]]}, 400, "InvalidInput"),
}
"""A function for each kind of bad request to the model in sessions, by the kind's name.

It is given an open session of the client.
"""
