"""A server on this machine that answers requests as a function does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

Answer = Callable[[bytes, Mapping[str, str]], bytes]
"""A function from a request's body and headers to the bytes of a response. Names of headers are in lower case."""


def response(body: bytes, status: int = 200, headers: Mapping[str, object] | None = None) -> bytes:
    """A response with a body."""
    told = {**(headers or {}), "Content-Length": len(body)}
    lines = [f"HTTP/1.1 {status} Told", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[int]:
    """Serve until the end; yields the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = (line.split(": ", 1) for line in lines[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                writer.write(answer(await reader.readexactly(int(headers["content-length"])), headers))
                await writer.drain()
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        yield int(server.sockets[0].getsockname()[1])
