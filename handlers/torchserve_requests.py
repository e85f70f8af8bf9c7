"""Parser of the requests in a TorchServe message, for bytes that have arrived.

TorchServe's own parser calls its reader for each number and each text: some 40 times for a request with five headers.

| part | encoding |
|---|---|
| number | 4 bytes, big-endian |
| text | its length, then its bytes |
| request | id; list of headers, each a name and a value; list of inputs, each a name, a content type and a value |
| end of a list | the number -1; in place of a request, the end of the message |
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Optional

_number = struct.Struct("!i").unpack_from
_NUMBER_BYTES = 4


class ParsedRequest(NamedTuple):
    """A request as TorchServe's worker represents it."""

    request: Optional[dict[str, Any]]
    """None: the message ends here."""
    end: int
    """Index of the first byte after the request."""


def parse_request(block: bytes, at: int) -> ParsedRequest | None:
    r"""Parse the request that begins at index `at`; None if the block does not contain all of it.

    >>> parse_request(b"\xff\xff\xff\xff", 0)
    ParsedRequest(request=None, end=4)
    >>> parse_request(b"\x00\x00\x00\x02ab", 0) is None
    True
    """

    def text() -> bytes | None:
        nonlocal at
        (length,) = _number(block, at)
        at += _NUMBER_BYTES
        if length < 0:
            return None
        start = at
        at += length
        return block[start:at]

    try:
        own_id = text()
        if own_id is None:
            return ParsedRequest(None, at)
        headers = []
        while (name := text()) is not None:
            headers.append({"name": name, "value": text() or b""})
        inputs: list[dict[str, Any]] = []
        while (name := text()) is not None:
            content_type = text() or b""
            # A codec may read an array in place, for which the bytes must be writable.
            value = bytearray(text() or b"")
            inputs.append({"name": name.decode(), "contentType": content_type.decode(), "value": value})
    except (struct.error, UnicodeDecodeError):
        # After a text that is cut, a number is missing. TorchServe's parser raises the error of a wrong name.
        return None
    return ParsedRequest({"requestId": own_id, "headers": headers, "parameters": inputs}, at)
