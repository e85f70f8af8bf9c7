"""Responses: status, body and headers of one request, and the errors that refuse it.

An error becomes the status and body of its own request, never of the requests in the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Union

JSON = "application/json"
NPY = "application/x-npy"
JSON_LENGTH_HEADER = "Inference-Header-Content-Length"
"""The header of a V2 body with the bytes of tensors: how many bytes its JSON has."""
TRUNCATED = {"X-Request-Truncated": "true"}
"""The header of a response to a request of which `overflow: truncate` cut a sequence."""
_BYTES_AFTER_JSON = "application/octet-stream; json-bytes="

DEFAULT_MAX_RESPONSE_BYTES = 6_553_500
"""The limit of a host that names none: TorchServe's default `max_response_size`."""
Encoded = tuple[bytes, str]
"""The body of a response and its content type."""
SessionKeys = Union[Mapping[str, object], None]
"""The fields of a session in a response to its request; None: the request has no session."""

_KINDS = {
    400: ("MalformedBody", "InvalidInput", "InvalidSessionId", "InvalidToken"),
    406: ("NotAcceptable",),
    409: ("ChunkBeforeFailed", "SessionBusy", "SessionExists", "StepGap", "StepTaken"),
    410: ("ModelChanged", "SessionEnded", "SessionUnknown"),
    413: ("AnswerTooLarge", "BodyTooLarge", "SequenceTooLong", "TooManySequences", "TooManyTimesteps", "TooMuchWork"),
    415: ("UnsupportedEncoding",),
    422: ("LengthNotAccepted",),
    429: ("TooManySessions",),
    500: ("AnswerNotFinite", "InternalError", "SessionDamaged"),
    501: ("ExplanationsNotSupported",),
    503: ("StoreUnavailable",),
    504: ("DeadlineExceeded",),
    507: ("StoreFull",),
}
STATUSES: Mapping[str, int] = {kind: status for status, kinds in _KINDS.items() for kind in kinds}
"""The HTTP status of each error kind."""


class RequestError(Exception):
    """The refusal of one request.

    `kind` is the body's `type` (one word that a program can compare, a key of `STATUSES`), `message` the body's
    `message` (for people). Neither holds more of the request than a few characters. `retry_after` is the number of
    seconds after which the same request may succeed; None where it will not. `status` is that of the kind unless given.
    `body_keys` are what the request's format adds to the body; None: the format is not known yet. `session` is the id
    of the request's session, where it is known.
    """

    body_keys: Mapping[str, object] | None = None
    session: str | None = None

    def __init__(self, kind: str, message: str, retry_after: float | None = None, status: int | None = None) -> None:
        self.kind = kind
        self.message = message
        self.retry_after = retry_after
        self.status = status or STATUSES[kind]
        super().__init__(message)

    def with_context(self, path: str) -> RequestError:
        """Return the same refusal with the path of its cause in the request.

        >>> str(invalid("input 'ids': the sequence is empty").with_context("instances[3]"))
        "instances[3]: input 'ids': the sequence is empty"
        """
        return RequestError(self.kind, f"{path}: {self.message}", self.retry_after, self.status)


def forget_causes(error: BaseException) -> None:
    """Drop the frames and causes of a refusal: they hold the refused body, and all that was made of it."""
    error.__traceback__ = error.__context__ = error.__cause__ = None


def malformed(message: str) -> RequestError:
    """Refuse a body that is not valid in its format."""
    return RequestError("MalformedBody", message)


def invalid(message: str) -> RequestError:
    """Refuse a readable body whose content the model does not accept."""
    return RequestError("InvalidInput", message)


def internal(message: str) -> RequestError:
    """Report a failure that is not the client's fault."""
    return RequestError("InternalError", message)


def abbreviate(value: object) -> str:
    """Format a few characters of a client's value, safe to print; only the type of a list or an object.

    >>> abbreviate("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    >>> abbreviate([[1, 2]])
    'a list'
    >>> abbreviate({"a": 1}), abbreviate(None)
    ('an object', 'null')
    """
    if isinstance(value, (str, bytes)):
        value = value[:80]
    elif value is None:
        return "null"
    elif isinstance(value, dict):
        return "an object"
    elif not isinstance(value, (bool, int, float)):
        return f"a {type(value).__name__}"
    elif isinstance(value, int) and value.bit_length() > 64:
        return "a number of very many digits"
    text = ascii(value)
    return text if len(text) <= 32 else text[:29] + "..."


class RawResponse(NamedTuple):
    """Status, body and headers of a response."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = MappingProxyType({})
    """Headers other than the content type."""
    replayed: bool = False
    """Whether it repeats an earlier response to the same request of a session."""


def binary_type(json_bytes: int) -> str:
    """Return the content type of a V2 body whose JSON is followed by the bytes of tensors.

    It holds the number of bytes of the JSON, so that the record of a session keeps that too.
    """
    return f"{_BYTES_AFTER_JSON}{json_bytes}"


def http_headers(response: RawResponse) -> tuple[str, Mapping[str, str]]:
    """Return the content type and the other headers of a response, as HTTP sends them.

    >>> http_headers(RawResponse(200, b"{}????", binary_type(2)))
    ('application/octet-stream', {'Inference-Header-Content-Length': '2'})
    """
    content_type = response.content_type
    if not content_type.startswith(_BYTES_AFTER_JSON):
        return content_type, response.headers
    plain, _, json_bytes = content_type.partition("; json-bytes=")
    return plain, {**response.headers, JSON_LENGTH_HEADER: json_bytes}


Outcome = Union[RawResponse, RequestError]
"""The response to a request, or its refusal."""
