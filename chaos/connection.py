"""One kept HTTP connection of one client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

_CONNECT_SECONDS = 5.0


class NoAnswer(Exception):
    """The connection was refused or lost, or the answer did not arrive in time."""


class Reply(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    """Header values by their names in lower case."""
    body: bytes


class Connection:
    """A connection to a port of this machine. After any failure the next request connects anew."""

    def __init__(self, port: int, seconds: float) -> None:
        self._port = port
        self._seconds = seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send one request.

        Raises:
            NoAnswer: with the reason.
        """
        try:
            reader = await self._send(path, body, headers)
            reply = await asyncio.wait_for(_read(reader), self._seconds)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            self.close()
            raise NoAnswer(type(error).__name__) from error
        # TorchServe closes the connection after every refusal
        if reply.status >= 400 or reply.headers.get("connection") == "close":
            self.close()
        return reply

    async def post_and_hang_up(self, path: str, body: bytes, headers: Mapping[str, str], after: float) -> None:
        """Send a request, and wait at most `after` seconds for its answer."""
        try:
            await self._send(path, body, headers)
            await asyncio.sleep(after)
        except (OSError, asyncio.TimeoutError) as error:
            raise NoAnswer(type(error).__name__) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            (_, writer), self._streams = self._streams, None
            with suppress(OSError):
                writer.close()

    async def _send(self, path: str, body: bytes, headers: Mapping[str, str]) -> asyncio.StreamReader:
        if self._streams is None:
            opening = asyncio.open_connection("127.0.0.1", self._port)
            self._streams = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        reader, writer = self._streams
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return reader


async def _read(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Reply(int(head[0].split()[1]), headers, body)
