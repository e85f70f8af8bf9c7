"""Requests that must be refused, each with its documented status and type, and clients that hang up."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from attacks import npy

from .checks import END, ID, LONGEST_CHUNK, START, STEP, Reply, Session
from .model import TOKENS

TAGGER, STREAM = "tagger", "stream"
"""The model of whole sequences, and the same one in sessions."""
LONGEST, MOST_SEQUENCES, MOST_TIMESTEPS, MOST_BYTES = 32, 16, 256, 65_536
_BYTES = {"Content-Type": "application/octet-stream"}
_NPY = {"Content-Type": "application/x-npy"}
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Request(NamedTuple):
    """A POST request to a model."""

    model: str
    body: bytes
    headers: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.model}: {self.body[:60].decode(errors='replace')}"


def json_request(model: str, value: object, headers: Mapping[str, str] | None = None) -> Request:
    """Make a request whose body is a JSON value, or bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Request(model, body, {"Content-Type": "application/json", **(headers or {})})


class BadRequest(NamedTuple):
    """A request, and its documented refusal."""

    request: Request
    status: int
    type: str

    def is_answered_by(self, reply: Reply) -> bool:
        """Whether a reply has the documented status, and the JSON body of an error with the documented type."""
        try:
            body = json.loads(reply.body)
            answer = (reply.status, body["code"], body["type"], body["message"] != "")
        except (ValueError, KeyError, TypeError):
            return False
        return answer == (self.status, self.status, self.type, True)


def _value(
    value: object,
    status: int = 400,
    kind: str = "InvalidInput",
    headers: Mapping[str, str] | None = None,
    model: str = TAGGER,
) -> BadRequest:
    return BadRequest(json_request(model, value, headers), status, kind)


_raw = partial(_value, kind="MalformedBody")
_chunk = partial(_value, model=STREAM)


def _v2(name: str = "1", shape: int = 3) -> BadRequest:
    return _value({"id": name, "inputs": [{"name": "ids", "shape": [shape], "datatype": "INT64", "data": [1, 2, 3]}]})


def _deadline(shift_ms: int, status: int, kind: str) -> BadRequest:
    return _value([1, 2, 3], status, kind, {"X-Request-Deadline-Ms": str(int(time.time() * 1000) + shift_ms)})


_FIXED: dict[str, BadRequest] = {
    "not JSON": _raw(b"oops"),
    "half of a JSON text": _raw(b'{"ids": [1, 2', headers=_BYTES),
    "deep nesting": _raw(b"[" * 50_000, headers=_BYTES),
    "deep nesting that ends": _raw(b"[" * 20_000 + b"]" * 20_000, headers=_BYTES),
    "a web form": _raw(b"[1, 2]", headers=_FORM),
    "no sequence": _value([]),
    "a scalar for a sequence": _value({"ids": 3}),
    "one dimension too many": _value([[1, 2], [3, 4]]),
    "a ragged list": _value([[1, 2], [3]]),
    "another input": _value({"frames": [1, 2]}),
    "fractions": _value([1.5, 2.5]),
    "texts": _value(["a", "b"]),
    "a token beyond the vocabulary": _value([1, TOKENS]),
    "a negative token": _value([1, -1]),
    "a token of many digits": _value([10**30]),
    "too long": _value([1] * (LONGEST + 1), 413, "SequenceTooLong"),
    "too many sequences": _value({"instances": [[1]] * (MOST_SEQUENCES + 1)}, 413, "TooManySequences"),
    "too many timesteps": _value({"instances": [[1] * LONGEST] * MOST_SEQUENCES}, 413, "TooManyTimesteps"),
    "too many bytes": _value({"instances": [[1] * MOST_BYTES]}, 413, "BodyTooLarge", _BYTES),
    "one bad sequence of several": _value({"instances": [[1, 2], [1, TOKENS], [3]]}),
    "a V2 shape without its data": _v2(shape=4),
    "a V2 id without end": _v2("x" * 20_000),
    "half of a .npy header": _raw(npy("(3,)", "<i8")[:20], headers=_NPY),
    "a .npy file without its data": _raw(npy("(3,)", "<i8"), headers=_NPY),
    "a .npy file of objects": _raw(npy("(3,)", "|O", b"\x80\x04."), headers=_NPY),
    "a .npy file of an absurd size": _raw(npy(f"(0, {2**70})", "<i8"), headers=_NPY),
    ".npy asked for two outputs": _value([1, 2], 406, "NotAcceptable", {"Accept": "application/x-npy"}),
    "no time left": _value([1, 2, 3], 504, "DeadlineExceeded", {"X-Request-Timeout-Ms": "0"}),
    "a deadline that is no number": _value([1, 2, 3], headers={"X-Request-Deadline-Ms": "soon"}),
}


def _at(session: Session, value: object, status: int = 400, kind: str = "InvalidInput", ahead: int = 0) -> BadRequest:
    return _chunk(value, status, kind, {ID: session.id, STEP: str(session.begin + ahead)})


def _unknown(**fields: str) -> BadRequest:
    return _chunk([1], 410, "SessionUnknown", {ID: f"unknown-{secrets.token_hex(8)}", **fields})


_LONG = [1] * (LONGEST_CHUNK + 1)
BAD: dict[str, Callable[[Session], BadRequest]] = {
    **{name: lambda _, bad=bad: bad for name, bad in _FIXED.items()},  # type: ignore[misc]
    "a deadline in the past": lambda _: _deadline(-2000, 504, "DeadlineExceeded"),
    "a deadline of another clock": lambda _: _deadline(-3_600_000, 400, "InvalidInput"),
    "an unknown session": lambda _: _unknown(),
    "an unknown session with a step": lambda _: _unknown(**{STEP: "7"}),
    "the end of an unknown session": lambda _: _unknown(**{END: "true"}),
    "an id with other characters": lambda _: _chunk([1], 400, "InvalidSessionId", {ID: "a b/c", START: "true"}),
    "an id without end": lambda _: _chunk([1], 400, "InvalidSessionId", {ID: "x" * 129, START: "true"}),
    "a step that is no number": lambda open_: _chunk([1], 400, "InvalidInput", {ID: open_.id, STEP: "x"}),
    "a start that is no truth": lambda open_: _chunk([1], 400, "InvalidInput", {ID: f"{open_.id}-", START: "perhaps"}),
    "a gap": lambda open_: _at(open_, [1], 409, "StepGap", ahead=3),
    "a start of an open session": lambda open_: _chunk([1, 2], 409, "SessionExists", {ID: open_.id, START: "true"}),
    "a bad token in a session": lambda open_: _at(open_, [1, TOKENS]),
    "texts in a session": lambda open_: _at(open_, ["a"]),
    "too long a chunk": lambda open_: _at(open_, _LONG, 413, "SequenceTooLong"),
    "two sequences in a session": lambda open_: _at(open_, {"instances": [[1], [2]]}),
}
"""A function from an open session to each kind of bad request, by its name."""


HangUp = tuple[Request, float, float]
"""A request, the share of its bytes that is sent, and the seconds until its client closes the connection."""
_EIGHT = json_request(TAGGER, [1, 2, 3, 4, 5, 6, 7, 8])
HANG_UPS: dict[str, Callable[[], HangUp]] = {
    "the client hangs up within its headers": lambda: (_EIGHT, 0.4, 0.0),
    "the client hangs up within its body": lambda: (_EIGHT, 0.95, 0.0),
    "the client hangs up after its request": lambda: (_EIGHT, 1.0, 0.0),
    "the client hangs up while it is computed": lambda: (_EIGHT, 1.0, 0.003),
    "the client hangs up after the start of a session": lambda: (
        json_request(STREAM, [1, 2, 3], {ID: f"left-{secrets.token_hex(8)}", START: "true"}),
        1.0,
        0.003,
    ),
}
KINDS = (*BAD, *HANG_UPS)
