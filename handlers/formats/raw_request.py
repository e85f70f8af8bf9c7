"""Requests as a host received them.

A request is a mapping of form fields and a mapping of headers, as TorchServe gives it. `RawRequest` reads both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Optional

from ..responses import JSON, JSON_LENGTH_HEADER, NPY, RequestError, malformed
from .binary_tensors import json_bytes

if TYPE_CHECKING:
    from ..streaming.stream_sessions import StreamSessions

BODY_FIELDS = ("body", "data")
REPEATED = ()
"""The value of a form's field of which there are several."""
_NO_HEADERS: Mapping[str, object] = MappingProxyType({})
_FORMS = {"application/x-www-form-urlencoded", "multipart/form-data"}


class Body(NamedTuple):
    """A request's body and its content type (lower case, without parameters; "" if none)."""

    value: object
    """Bytes, bytearray or str, or a value that the host has already parsed from JSON."""
    content_type: str
    json_bytes: int | None = None
    """V2: the bytes of the JSON that the bytes of tensors follow; None: there are none."""


class RawRequest(NamedTuple):
    """One request as its host received it.

    `row` maps form fields to values; a body that is no form is the field `body`. `headers` has the HTTP headers as the
    client wrote them (none over gRPC) and, for each field, a mapping with the field's content type.
    """

    row: Mapping[str, object]
    headers: Mapping[str, object] = _NO_HEADERS
    waited_ms: float = 0.0
    """Milliseconds in the queue of a host that counts them."""
    stream: Optional[StreamSessions] = None
    """The sessions of the stream of which it is a chunk; None: it came alone."""

    def header(self, name: str) -> str:
        """Return the value of an HTTP header, "" if it is missing. Names are compared without case.

        >>> RawRequest({}, {"Accept": "application/x-npy"}).header("accept")
        'application/x-npy'
        """
        headers = self.headers
        value = headers.get(_titled(name)) or headers.get(name)  # as nearly every client writes them
        if type(value) is str:
            return value
        length = len(name)
        for key, value in headers.items():
            if len(key) == length and isinstance(value, str) and key.lower() == name:
                return value
        return ""

    def written(self) -> object:
        """Return the body as the host gave it; None if there is none."""
        try:
            return self.body().value
        except RequestError:
            return None

    @property
    def content_length(self) -> int:
        """Return the number of bytes of the body from its HTTP header, 0 if there is none."""
        return _whole_number(self.header("content-length"))

    @property
    def is_describe_request(self) -> bool:
        """Whether it asks for the model's description and readiness, as TorchServe itself does.

        A header of that name in an inference request comes with a body, and is ignored. Clients in Go, among them
        the probes of Kubernetes, write it as `Describe`.

        >>> RawRequest({}, {"describe": "True"}).is_describe_request
        True
        >>> RawRequest({"body": b""}, {"Describe": "True"}).is_describe_request
        True
        >>> RawRequest({"body": b"[1]"}, {"describe": "True"}).is_describe_request
        False
        """
        row = self.row
        if any(row.values()) or self.header("describe") != "True":
            return False
        return all(isinstance(value, (bytes, bytearray, str)) for value in row.values())

    @property
    def is_explain_request(self) -> bool:
        """Whether the request was sent to the explanations address."""
        return self.headers.get("explain") == "True"

    @property
    def came_over_grpc(self) -> bool:
        """Whether it came over TorchServe's gRPC: no header is a text, as `url_path` is over HTTP."""
        return str not in map(type, self.headers.values())

    @property
    def accepts_npy(self) -> bool:
        """Whether the client accepts a .npy file as the response."""
        return NPY in _accepted(self.header("accept"))

    @property
    def accepts_json(self) -> bool:
        """Whether the client also accepts JSON, for a response that .npy cannot hold."""
        return bool(_accepted(self.header("accept")) & {JSON, "application/*", "*/*"})

    def body(self) -> Body:
        """Return the body, whichever field holds it.

        Raises `RequestError`: 400, there is no body, or it is shorter than its headers say.
        """
        look = _has_rare_headers if len(self.headers) <= _FEW_HEADERS else _has_rare_headers.__wrapped__
        has_rare = look(tuple(self.headers))
        if has_rare:
            self._check_encoding()
        for name in BODY_FIELDS:
            if name in self.row:
                if (value := self.row[name]) is REPEATED:
                    raise malformed(f"the request has more than one field {name!r}: send a request for each")
                return Body(value, self._field_type(name), self._json_bytes(value) if has_rare else None)
        raise malformed(_no_body(self.row, _plain_type(self.header("content-type"))))

    def _check_encoding(self) -> None:
        coding = self.header(_ENCODING)
        if coding and coding.lower() != "identity":
            reason = f"the header Content-Encoding is {coding[:99]!r}: send the body as it is, without it"
            raise RequestError("UnsupportedEncoding", reason)

    def _json_bytes(self, value: object) -> int | None:
        given = self.header(_LENGTH)
        return json_bytes(value, given) if given and isinstance(value, (bytes, bytearray)) else None

    def _field_type(self, name: str) -> str:
        own = self.headers.get(name)
        given = own.get("content-type") if isinstance(own, dict) else None
        return _plain_type(given if isinstance(given, str) and given else self.header("content-type"))


_titled = lru_cache(maxsize=16)(str.title)
_ENCODING, _LENGTH = "content-encoding", JSON_LENGTH_HEADER.lower()
_LONGEST_KEPT = 1000  # characters of a header whose types are kept: a client can send thousands
_FEW_HEADERS = 100
_NOT_ACCEPTED = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*(;|$)", re.IGNORECASE)


@lru_cache(maxsize=1024)
def _whole_number(text: str) -> int:
    return int(text) if len(text) < 16 and text.isascii() and text.isdigit() else 0


@lru_cache(maxsize=64)  # clients send few sets of headers
def _has_rare_headers(names: tuple[str, ...]) -> bool:
    """Whether one of these names is that of a header of the body which most requests have not."""
    return not {_ENCODING, _LENGTH}.isdisjoint(map(str.lower, names))


def _accepted(accept: str) -> frozenset[str]:
    return (_types_in if len(accept) <= _LONGEST_KEPT else _types_in.__wrapped__)(accept)


@lru_cache(maxsize=256)  # there are few different headers
def _types_in(accept: str) -> frozenset[str]:
    return frozenset(_plain_type(entry) for entry in accept.split(",") if not _NOT_ACCEPTED.search(entry))


@lru_cache(maxsize=256)
def _plain_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _no_body(row: Mapping[str, object], content_type: str) -> str:
    first = str(next(iter(row), ""))
    # TorchServe passes a form that it could not parse as a row without fields.
    if first.lstrip()[:1] in {"[", "{"} or (not row and content_type in _FORMS):
        return (
            "the body came as a web form: send JSON with the header 'Content-Type: application/json' "
            "(curl -d needs -H 'Content-Type: application/json')"
        )
    if not row:
        return "the request has no body"
    return "the form has no field 'body' or 'data': send the input as the request's body, or in a field of that name"
