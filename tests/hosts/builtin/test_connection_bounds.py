"""Connections of the built-in server that send too much beside a body, stay for too long, or are too many."""

import asyncio
import socket
from collections.abc import Sequence

import pytest

from torchserve_neuron_lstm.hosts.builtin import http_service
from torchserve_neuron_lstm.hosts.builtin.http_service import Application, HttpServer
from torchserve_neuron_lstm.hosts.builtin.worker_processes import ServerSettings

SETTINGS = ServerSettings("127.0.0.1", 0, None, 1, None, None, None, 0)
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def answers_to(*connections: Sequence[bytes]) -> list[bytes]:
    """Open connections, send the parts of each, and read each until the server ends it."""

    async def run() -> list[bytes]:
        server, address = HttpServer(Application({}, None), SETTINGS), socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([address]))
        opened = [await asyncio.open_connection(*address.getsockname()) for _ in connections]
        for (_, writer), parts in zip(opened, connections, strict=True):
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.05)
        found = [await asyncio.wait_for(reader.read(), 30) for reader, _ in opened]
        for _, writer in opened:
            writer.close()
        server.should_exit = True
        await serving
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("parts", [(GET, b"a"), (CHUNKED, b"1;a"), (CHUNKED, b"1\r\na\r\n0\r\n")])
def test_bytes_beside_a_body_have_a_bound(parts: tuple[bytes, ...]) -> None:
    (found,) = answers_to([*parts, *[b"a: b\r\n" * 2000 if parts[-1].endswith(b"0\r\n") else b"a" * 12_000] * 6])
    assert b"the headers have more than 65536 bytes" in found


def test_connections_are_few_and_end_after_a_while_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_service, "_IDLE_SECONDS", 1)
    monkeypatch.setattr(http_service, "MOST_CONNECTIONS", 3)
    silent, half, whole, too_many = answers_to([], [GET], [GET + b"\r\n"], [])

    assert (silent, half, too_many) == (b"", b"", b"")
    assert whole.startswith(b"HTTP/1.1 200 OK")


def test_requests_that_wait_for_an_answer_are_few() -> None:
    (found,) = answers_to([b"GET / HTTP/1.1\r\n\r\n" * 150])

    assert b"HTTP/1.1 400 " in found
    assert found.count(b"HTTP/1.1") <= http_service._MOST_PIPELINED + 2


def test_a_handshake_that_is_refused_does_not_disturb_the_end_of_the_server() -> None:
    handshake = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nCookie: "

    async def run() -> bytes:
        server, address = HttpServer(Application({}, None), SETTINGS), socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([address]))
        reader, writer = await asyncio.open_connection(*address.getsockname())
        writer.write(handshake + b"a" * 9000 + b"\r\n\r\n")
        await asyncio.sleep(0.2)
        server.should_exit = True
        await serving
        writer.close()
        return await reader.read()

    assert b"HTTP/1.1 200" not in asyncio.run(run())
