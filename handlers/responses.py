"""Responses: status, body and headers of one request, and the errors that refuse it.

An error ends in the status and body of its own request, never in those of the requests it was batched with.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

JSON = "application/json"
NPY = "application/x-npy"

StatusCode = Literal[400, 406, 409, 410, 413, 422, 429, 500, 501, 503, 507]


class RequestError(Exception):
    """One request that gets no answer, and why.

    `status` is the HTTP status, `kind` the body's `type` (one word that a program can compare), `message` the body's
    `message` (for people). None of them ever holds more of the request than a few characters. `retry_after` is the
    number of seconds after which the same request may be answered; None where it will not be.
    """

    def __init__(self, status: StatusCode, kind: str, message: str, retry_after: float | None = None) -> None:
        self.status: StatusCode = status
        self.kind = kind
        self.message = message
        self.retry_after = retry_after
        super().__init__(message)

    def within(self, place: str) -> RequestError:
        """The same refusal, saying where in the request it happened.

        >>> str(invalid("input 'ids': the sequence is empty").within("instances[3]"))
        "instances[3]: input 'ids': the sequence is empty"
        """
        return RequestError(self.status, self.kind, f"{place}: {self.message}", self.retry_after)


def malformed(message: str) -> RequestError:
    """The body is not what its format says."""
    return RequestError(400, "MalformedBody", message)


def invalid(message: str) -> RequestError:
    """The body can be read, but the model does not take what it says."""
    return RequestError(400, "InvalidInput", message)


def internal(message: str) -> RequestError:
    """Not the client's fault."""
    return RequestError(500, "InternalError", message)


def abbreviate(value: object) -> str:
    """A few characters of what a client sent, safe to print; of a list or an object only what it is.

    >>> abbreviate("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    >>> abbreviate([[1, 2]])
    'a list'
    >>> abbreviate({"a": 1}), abbreviate(None)
    ('an object', 'null')
    """
    if isinstance(value, str | bytes):
        value = value[:80]
    elif value is None:
        return "null"
    elif isinstance(value, dict):
        return "an object"
    elif not isinstance(value, bool | int | float):
        return f"a {type(value).__name__}"
    elif isinstance(value, int) and value.bit_length() > 64:
        return "a number of very many digits"
    text = ascii(value)
    return text if len(text) <= 32 else text[:29] + "..."


_NONE: Mapping[str, str] = MappingProxyType({})


class RawResponse(NamedTuple):
    """Status, body and headers of a response."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = _NONE
    """Beside the content type."""
    replayed: bool = False
    """It was given before, to the same piece of a session."""
