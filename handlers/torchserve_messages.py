"""TorchServe's messages to a worker, read from its socket in blocks, and parsed there.

TorchServe's worker reads each number and each text of a message by a separate system call: some 40 for a request with
a few headers, about a tenth of the CPU time of a worker with a small model.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from socket import socket
from typing import Any, Optional

from .torchserve_requests import parse_request

_log = logging.getLogger(__name__)

_BLOCK = 65_536
"""Bytes that are asked for at least: a batch of 32 requests of a hundred tokens, with headers."""
_READER = "_retrieve_buffer"
"""The function of TorchServe's worker that reads a number of bytes."""
_REQUEST_READER = "_retrieve_request"
"""The function of TorchServe's worker that reads a request of a message, or its end."""
_PARAMETERS = {_READER: ["conn", "length"], _REQUEST_READER: ["conn"]}
Request = dict[str, Any]
"""A request as TorchServe's worker represents it."""


class ReadAhead:
    """Reads a number of bytes from a connection, and keeps what arrived with them for the next call."""

    def __init__(self, at_end: Callable[[socket, int], bytearray]) -> None:
        """Create one that calls `at_end`, TorchServe's own reader, once the server has closed the connection."""
        self._at_end = at_end
        self._connection: Optional[socket] = None
        self._block = b""
        self._at = 0

    def __call__(self, connection: socket, length: int) -> bytearray:
        """Return the next `length` bytes of a connection."""
        if connection is not self._connection:
            self._connection, self._block, self._at = connection, b"", 0
        end = self._at + length
        taken = bytearray(self._block[self._at : end])
        self._at = end
        while len(taken) < length:
            missing = length - len(taken)
            # Of a long body no more than what is missing is asked for: what follows it would be copied once more.
            block = connection.recv(max(missing, _BLOCK))
            if not block:
                return self._at_end(connection, missing)
            taken += block[:missing]
            self._block, self._at = block, missing
        if self._at >= len(self._block):
            self._block, self._at = b"", 0
        return taken

    def arrived(self, connection: socket) -> tuple[bytes, int]:
        """Return the bytes that have arrived, and the index of the next one."""
        return (self._block, self._at) if connection is self._connection else (b"", 0)

    def skip_to(self, index: int) -> None:
        """Continue at an index of the bytes that have arrived."""
        self._at = index


class RequestReader:
    """Reads the next request of a message, all at once if all of it has arrived."""

    def __init__(self, read: ReadAhead, own: Callable[[socket], Optional[Request]]) -> None:
        """Create one that calls `own`, TorchServe's reader, for the others."""
        self._read = read
        self._own = own

    def __call__(self, connection: socket) -> Request | None:
        """Return the next request; None at the end of the message."""
        parsed = None if _decodes_inputs() else parse_request(*self._read.arrived(connection))
        if parsed is None:
            return self._own(connection)
        self._read.skip_to(parsed.end)
        return parsed.request


def _decodes_inputs() -> bool:
    """Whether TorchServe parses JSON and decodes texts before it calls the handler."""
    return os.environ.get("TS_DECODE_INPUT_REQUEST", "true") == "true"


def read_in_blocks(messages: Any) -> None:
    """Let `messages`, the module `ts.protocol.otf_message_handler`, read ahead.

    An unknown release of TorchServe keeps its readers, with a line in the log.
    """
    own: dict[str, Any] = {name: getattr(messages, name, None) for name in _PARAMETERS}
    if isinstance(own[_READER], ReadAhead):
        return
    for name, parameters in _PARAMETERS.items():
        if not inspect.isfunction(own[name]) or list(inspect.signature(own[name]).parameters) != parameters:
            _log.info("TorchServe's messages are read one value at a time: %s has no known %s", messages.__name__, name)
            return
    read = ReadAhead(own[_READER])
    setattr(messages, _READER, read)
    setattr(messages, _REQUEST_READER, RequestReader(read, own[_REQUEST_READER]))
