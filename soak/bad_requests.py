"""Requests without a session that must be refused, each with its documented status and type."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from chaos.model import TOKENS

from .archives import LONGEST, MOST_BYTES, MOST_SEQUENCES, TAGGER
from .request import JSON, Request, json_request, predictions


class Refusal(NamedTuple):
    """The documented answer to a bad request."""

    status: int
    type: str


class BadRequest(NamedTuple):
    """A request that must be refused."""

    request: Request
    refusal: Refusal


_BYTES = {"Content-Type": "application/octet-stream"}
_NPY = {"Content-Type": "application/x-npy"}
_MALFORMED = Refusal(400, "MalformedBody")
_INVALID = Refusal(400, "InvalidInput")
_LATE = Refusal(504, "DeadlineExceeded")


def _raw(body: bytes, headers: Mapping[str, str], refusal: Refusal) -> BadRequest:
    return BadRequest(Request(predictions(TAGGER), body, headers), refusal)


def _value(value: object, refusal: Refusal, headers: Mapping[str, str] | None = None) -> BadRequest:
    return BadRequest(json_request(TAGGER, value, headers), refusal)


def _v2(refusal: Refusal, id: str = "1", shape: list[int] | None = None) -> BadRequest:  # noqa: A002 - V2's own word
    entry = {"name": "ids", "shape": shape or [3], "datatype": "INT64", "data": [1, 2, 3]}
    return _value({"id": id, "inputs": [entry]}, refusal)


def npy(descr: str, shape: str, data: bytes = b"") -> bytes:
    r"""A .npy file with any header.

    >>> npy("<i8", "(1,)")[:8]
    b'\x93NUMPY\x01\x00'
    """
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


def _deadline(shift_ms: int, refusal: Refusal) -> BadRequest:
    unix_ms = int(time.time() * 1000) + shift_ms
    return _value([1, 2, 3], refusal, {"X-Request-Deadline-Ms": str(unix_ms)})


_FIXED: dict[str, BadRequest] = {
    "not JSON": _raw(b"oops", JSON, _MALFORMED),
    "half of a JSON text": _raw(b'{"ids": [1, 2', _BYTES, _MALFORMED),
    "deep nesting": _raw(b"[" * 50_000, _BYTES, _MALFORMED),
    "deep nesting that ends": _raw(b"[" * 20_000 + b"]" * 20_000, _BYTES, _MALFORMED),
    "a web form": _raw(b"[1, 2]", {"Content-Type": "application/x-www-form-urlencoded"}, _MALFORMED),
    "no sequence": _value([], _INVALID),
    "a scalar for a sequence": _value({"ids": 3}, _INVALID),
    "one dimension too many": _value([[1, 2], [3, 4]], _INVALID),
    "a ragged list": _value([[1, 2], [3]], _INVALID),
    "another input": _value({"frames": [1, 2]}, _INVALID),
    "fractions": _value([1.5, 2.5], _INVALID),
    "texts": _value(["a", "b"], _INVALID),
    "a token beyond the vocabulary": _value([1, TOKENS], _INVALID),
    "a negative token": _value([1, -1], _INVALID),
    "a token of many digits": _value([10**30], _INVALID),
    "too long": _value([1] * (LONGEST + 1), Refusal(413, "SequenceTooLong")),
    "too many sequences": _value({"instances": [[1]] * (MOST_SEQUENCES + 1)}, Refusal(413, "TooManySequences")),
    "too many timesteps": _value({"instances": [[1] * LONGEST] * MOST_SEQUENCES}, Refusal(413, "TooManyTimesteps")),
    "too many bytes": _raw(
        json.dumps({"instances": [[1] * MOST_BYTES]}).encode(), _BYTES, Refusal(413, "BodyTooLarge")
    ),
    "one bad sequence of several": _value({"instances": [[1, 2], [1, TOKENS], [3]]}, _INVALID),
    "a V2 shape without its data": _v2(_INVALID, shape=[4]),
    "a V2 id without end": _v2(_INVALID, id="x" * 20_000),
    "half of a .npy header": _raw(npy("<i8", "(3,)")[:20], _NPY, _MALFORMED),
    "a .npy file without its data": _raw(npy("<i8", "(3,)"), _NPY, _MALFORMED),
    "a .npy file of objects": _raw(npy("|O", "(3,)", b"\x80\x04."), _NPY, _MALFORMED),
    "a .npy file of an absurd size": _raw(npy("<i8", f"(0, {2**70})"), _NPY, _MALFORMED),
    ".npy asked for two outputs": _value([1, 2], Refusal(406, "NotAcceptable"), {"Accept": "application/x-npy"}),
    "no time left": _value([1, 2, 3], _LATE, {"X-Request-Timeout-Ms": "0"}),
    "a deadline that is no number": _value([1, 2, 3], _INVALID, {"X-Request-Deadline-Ms": "soon"}),
}

PLAIN_KINDS: dict[str, Callable[[], BadRequest]] = {
    **{name: partial(_raw, bad.request.body, bad.request.headers, bad.refusal) for name, bad in _FIXED.items()},
    "a deadline in the past": partial(_deadline, -2000, _LATE),
    "a deadline of another clock": partial(_deadline, -3_600_000, _INVALID),
}
"""A function for each kind of bad request to the model of whole sequences, by the kind's name."""
