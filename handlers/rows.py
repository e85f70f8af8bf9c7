"""How TorchServe hands a request over: one mapping of fields, and one of headers, with its habits undone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from .errors import malformed

BODY_FIELDS = ("body", "data")
NPY = "application/x-npy"
JSON = "application/json"
_NO_HEADERS: Mapping[str, object] = MappingProxyType({})
_FORMS = {"application/x-www-form-urlencoded", "multipart/form-data"}


class Body(NamedTuple):
    """What a client sent, and the content type it gave (lower case, without parameters; "" if none)."""

    value: object
    """bytes, bytearray or str, or what TorchServe has already parsed from JSON."""
    content_type: str


class RawRequest(NamedTuple):
    """One row of a batch as TorchServe gives it.

    `row` maps form fields to values; a body that is no form is the field `body`. An envelope may have replaced the
    row by the body itself. `headers` has the HTTP headers as the client wrote them (none over gRPC) and, for each
    field, a mapping with its own content type.
    """

    row: object
    headers: Mapping[str, object] = _NO_HEADERS

    def header(self, name: str) -> str:
        """The value of an HTTP header, "" where there is none. Names are compared without case.

        >>> RawRequest({}, {"Accept": "application/x-npy"}).header("accept")
        'application/x-npy'
        """
        for spelling in (name, name.title()):  # as nearly every client writes them
            value = self.headers.get(spelling)
            if isinstance(value, str):
                return value
        others = (value for key, value in self.headers.items() if key.lower() == name and isinstance(value, str))
        return next(others, "")

    @property
    def asks_description(self) -> bool:
        """Whether TorchServe itself asks what the model is. A client's header of that name comes with a body.

        >>> RawRequest({}, {"describe": "True"}).asks_description
        True
        >>> RawRequest({"body": b"[1]"}, {"describe": "True"}).asks_description
        False
        """
        return self.headers.get("describe") == "True" and isinstance(self.row, Mapping) and not self.row

    @property
    def asks_explanation(self) -> bool:
        """Whether it came to the explanations address."""
        return self.headers.get("explain") == "True"

    @property
    def accepts_npy(self) -> bool:
        """Whether the client wants the answer as a .npy file."""
        return NPY in _accepted(self.header("accept"))

    @property
    def accepts_json(self) -> bool:
        """Whether the client also takes JSON, where .npy cannot be."""
        return bool(_accepted(self.header("accept")) & {JSON, "application/*", "*/*"})

    def body(self) -> Body:
        """The body, wherever it stands.

        Raises:
            RequestError: 400, there is none.
        """
        if not isinstance(self.row, dict):
            return Body(self.row, _plain_type(self.header("content-type")))
        for name in BODY_FIELDS:
            if name in self.row:
                return Body(self.row[name], self._field_type(name))
        raise malformed(_no_body(self.row, _plain_type(self.header("content-type"))))

    def _field_type(self, name: str) -> str:
        own = self.headers.get(name)
        given = own.get("content-type") if isinstance(own, dict) else None
        return _plain_type(given if isinstance(given, str) and given else self.header("content-type"))


@lru_cache(maxsize=256)  # few clients, each with its own
def _accepted(accept: str) -> frozenset[str]:
    return frozenset(map(_plain_type, accept.split(",")))


@lru_cache(maxsize=256)
def _plain_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _no_body(row: Mapping[object, object], content_type: str) -> str:
    first = str(next(iter(row), ""))
    # TorchServe hands over what it could not read as a form as no field at all.
    if first.lstrip()[:1] in {"[", "{"} or (not row and content_type in _FORMS):
        return (
            "the body came as a web form: send JSON with the header 'Content-Type: application/json' "
            "(curl -d needs -H 'Content-Type: application/json')"
        )
    if not row:
        return "the request has no body"
    return "the form has no field 'body' or 'data': send the input as the request's body, or in a field of that name"
