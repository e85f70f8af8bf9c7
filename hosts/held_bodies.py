"""Bound of the bytes that a process holds for requests: bodies that it reads, or that wait for their answer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from ..handlers.responses import RequestError

_MOST_BYTES = 512 << 20


class HeldBody(AbstractContextManager["HeldBody"]):
    """The body of one request, counted with all others of the process until the `with` block ends.

    A queue counts requests only once their bodies were read. Bodies of which a client sends all but the end would fill
    the memory before.
    """

    _all_bytes: ClassVar[int] = 0

    def __init__(self, largest: int) -> None:
        """`largest` is the number of bytes of the model's largest body: one alone always fits."""
        self._most = max(_MOST_BYTES, largest)
        self._bytes = 0

    def __exit__(self, *_: object) -> None:
        self.drop()

    def add(self, size: int) -> None:
        """Count more bytes of the body. Raises `RequestError`: 503, the process holds as many as it may."""
        if HeldBody._all_bytes + size > self._most:
            message = "The server holds as many bytes of requests as it may hold; send the request again"
            raise RequestError("ServiceUnavailableException", message, status=503)
        HeldBody._all_bytes += size
        self._bytes += size

    def remove(self, size: int) -> None:
        """Count so many bytes no longer."""
        removed = min(size, self._bytes)
        HeldBody._all_bytes -= removed
        self._bytes -= removed

    def drop(self) -> None:
        """Count the body no longer."""
        self.remove(self._bytes)
