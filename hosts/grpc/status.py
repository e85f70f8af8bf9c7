"""Status codes of gRPC, and the answer to one call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from ...handlers.responses import STATUSES, RawResponse

_CODES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    406: "INVALID_ARGUMENT",
    409: "ABORTED",
    410: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    507: "RESOURCE_EXHAUSTED",
}
ERROR_TYPE = "error-type"
"""Trailing metadata: the word that is `type` in an error body of REST."""
RETRY_AFTER = "retry-after"
"""Trailing metadata: seconds after which the same request may succeed, as the header of REST has them."""


class GrpcAnswer(NamedTuple):
    """The answer to one call."""

    message: bytes = b""
    """The response message; empty for an error."""
    code: str = "OK"
    details: str = ""
    trailing: tuple[tuple[str, str], ...] = ()
    """Trailing metadata."""


class GrpcRefusalError(Exception):
    """A call is refused; `answer` says so."""

    def __init__(self, kind: str, message: str, status: int | None = None, retry_after: str = "") -> None:
        super().__init__(message)
        retry = ((RETRY_AFTER, retry_after),) if retry_after else ()
        code = code_of(status or STATUSES[kind])
        self.answer = GrpcAnswer(code=code, details=message, trailing=((ERROR_TYPE, kind), *retry))


def code_of(status: int) -> str:
    """Return the code that stands for an HTTP status.

    >>> code_of(413), code_of(418), code_of(502)
    ('INVALID_ARGUMENT', 'INVALID_ARGUMENT', 'INTERNAL')
    """
    return _CODES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")


def refusal(response: RawResponse) -> GrpcRefusalError:
    """Return the refusal that an error response of REST describes."""
    told = json.loads(response.body)
    return GrpcRefusalError(told["type"], told["message"], response.status, response.headers.get("Retry-After", ""))
