"""TorchServe's messages to a worker, read from its socket in blocks, and the settings of its server.

TorchServe's worker reads each number and each text of a message by a separate system call: some 40 for a request with
a few headers, about a tenth of the CPU time of a worker with a small model. A request that has arrived is parsed at
once, in a third of the time that TorchServe's parser takes.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any, Callable, Optional

from .formats.raw_request import REPEATED
from .responses import DEFAULT_MAX_RESPONSE_BYTES

_log = logging.getLogger(__name__)

_BLOCK = 65_536
"""Bytes that are asked for at least: a batch of 32 requests of a hundred tokens, with headers."""
_READERS = {"_retrieve_buffer": ["conn", "length"], "_retrieve_request": ["conn"]}
"""The functions of TorchServe's worker that read a number of bytes and a request, with their parameters."""
_NUMBER = struct.Struct("!i")
_MOST_FIELDS = 1000  # of a form, that are kept


class ReadAhead:
    """Reads a number of bytes from a connection, and keeps what arrived with them for the next call."""

    def __init__(
        self, at_end: Callable[[socket, int], bytearray], read_request: Callable[[socket], Optional[dict[str, Any]]]
    ) -> None:
        """Create one with TorchServe's own readers: for a closed connection, and for requests not parsed here."""
        self._at_end, self._read_request = at_end, read_request
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

    def request(self, connection: socket) -> Optional[dict[str, Any]]:
        """Return the next request of a message; None at its end."""
        if connection is self._connection and os.environ.get("TS_DECODE_INPUT_REQUEST", "true") != "true":
            with suppress(struct.error):  # after a text that is cut, a number is missing
                request, self._at = _parsed(self._block, self._at)
                return request
        return self._read_request(connection)


def _parsed(block: bytes, at: int) -> tuple[Optional[dict[str, Any]], int]:
    """Parse the request at an index as TorchServe's worker does; returns the index after it, too.

    Raises `struct.error`: the block ends before.
    """

    def text() -> Optional[bytes]:
        nonlocal at
        (length,) = _NUMBER.unpack_from(block, at)
        at += _NUMBER.size
        if length < 0:  # the end of a list or of the message
            return None
        start = at
        at += length
        return block[start:at]

    own_id = text()
    if own_id is None:
        return None, at
    headers: list[dict[str, Any]] = []
    inputs: dict[bytes, dict[str, Any]] = {}
    while (name := text()) is not None:
        headers.append({"name": name, "value": text()})
    while (name := text()) is not None:
        content_type, value = text() or b"", text() or b""  # decoded once it is known that they are not cut
        if len(inputs) < _MOST_FIELDS or name in inputs:
            kept = REPEATED if name in inputs else bytearray(value)  # writable: a codec may read an array in place
            inputs[name] = {"name": name.decode(), "contentType": content_type.decode(), "value": kept}
    return {"requestId": own_id, "headers": headers, "parameters": [*inputs.values()]}, at


def read_in_blocks(messages: Any) -> None:
    """Let `messages`, the module `ts.protocol.otf_message_handler`, read ahead.

    An unknown release of TorchServe keeps its readers, with a line in the log.
    """
    own: list[Any] = [getattr(messages, name, None) for name in _READERS]
    if isinstance(own[0], ReadAhead):
        return
    for reader, (name, parameters) in zip(own, _READERS.items()):
        if not inspect.isfunction(reader) or list(inspect.signature(reader).parameters) != parameters:
            _log.info("TorchServe's messages are read one value at a time: %s has no known %s", messages.__name__, name)
            return
    read = ReadAhead(*own)
    messages._retrieve_buffer, messages._retrieve_request = read, read.request  # noqa: SLF001 - TorchServe has no others


_LARGEST_FILE = 1 << 20  # bytes
_ENTRY = re.compile(r"(?P<key>[^=:\s]*)\s*[=:]?\s*(?P<value>.*)")


def max_response_bytes(environment: Mapping[str, str], properties: Mapping[str, str]) -> int:
    """Return the limit of one body in bytes.

    `properties` are those of the server's configuration, as far as they are known. The environment counts where the
    server reads it (`enable_envvars_config`); elsewhere it can only lower the limit, for a server that is not found.

    >>> max_response_bytes({"TS_MAX_RESPONSE_SIZE": "9000000"}, {"enable_envvars_config": "true"})
    9000000
    >>> max_response_bytes({"TS_MAX_RESPONSE_SIZE": "9000000"}, {"max_response_size": "2000"})
    2000
    >>> max_response_bytes({"TS_MAX_RESPONSE_SIZE": "1000"}, {}), max_response_bytes({}, {})
    (1000, 6553500)
    """
    given = _positive(environment.get("TS_MAX_RESPONSE_SIZE"))
    written = _positive(properties.get("max_response_size")) or DEFAULT_MAX_RESPONSE_BYTES
    if given is None:
        return written
    return given if properties.get("enable_envvars_config", "").lower() == "true" else min(given, written)


def read_server_properties(process: Path) -> dict[str, str]:
    """Return the server's configuration by its `/proc` folder; empty if it cannot be read."""
    try:
        command = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        folder = (process / "cwd").readlink()
        file = folder / (_configuration_file(command, os.environ) or "config.properties")
        if not file.is_file():
            return {}
        with file.open("rb") as opened:
            return parse_properties(opened.read(_LARGEST_FILE).decode("latin-1"))
    except OSError:
        return {}


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the entries of a Java properties file, which have no escapes here.

    A key ends with the first `=`, `:` or blank. A comment does not continue on the next line.

    >>> parse_properties("# C:\\\nmax_response_size = 100\nnumber_of_gpu: 0\njob_queue_size 9\nmodels={\\\n  }\n")
    {'max_response_size': '100', 'number_of_gpu': '0', 'job_queue_size': '9', 'models': '{}'}
    """
    lines: list[str] = []
    for line in map(str.lstrip, text.splitlines()):
        if lines and lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1] + line
        elif line[:1] not in ("", "#", "!"):
            lines.append(line)
    return {found["key"]: found["value"].strip() for found in map(_ENTRY.match, lines) if found is not None}


def _configuration_file(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    if "-f" in command[:-1]:
        return command[command.index("-f") + 1]
    set_by_system = next((word for word in command if word.startswith("-DtsConfigFile=")), None)
    return environment.get("TS_CONFIG_FILE") or (set_by_system and set_by_system.partition("=")[2])


def _positive(text: str | None) -> int | None:
    digits = (text or "").strip()
    return int(digits) or None if digits.isascii() and digits.isdigit() else None
