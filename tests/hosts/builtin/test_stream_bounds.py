"""Streams whose clients send too much or nothing, or more than is answered."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.hosts import held_bodies
from torchserve_neuron_lstm.hosts.builtin import stream_connection
from torchserve_neuron_lstm.hosts.builtin.http_service import Application, HttpServer
from torchserve_neuron_lstm.hosts.builtin.worker_processes import ServerSettings
from torchserve_neuron_lstm.hosts.held_bodies import HeldBody

MOST_BYTES = 1 << 20
SETTINGS = ServerSettings("127.0.0.1", 0, None, 1, None, None, None, 0)
HALF = b"\x81\xfe\xff\xffmask" + bytes(5000)
"""A message without its end."""
PARTS = b"\x01\x80mask" + b"\x00\x80mask" * 200_000
"""Frames of one message, all without content."""
NOT_TEXT = b"\x81\x81mask" + bytes([0xFF ^ ord("m")])


class Running(NamedTuple):
    server: HttpServer
    stream: ClientConnection
    other: ClientConnection
    released: asyncio.Event
    """The event after which the model answers, with the size of each message."""
    asked: list[int]

    async def send(self, messages: list[str]) -> None:
        for message in messages:
            await self.stream.send(message)


def run(act: Callable[[Running], Awaitable[None]], **settings: float) -> None:
    """Act on two streams to a server that is in this process."""

    async def inner() -> None:
        released, asked = asyncio.Event(), list[int]()

        async def respond(request: RawRequest) -> RawResponse:
            body: Any = request.row["body"]
            asked.append(len(body))
            await released.wait()
            return RawResponse(200, b"%d" % len(body))

        model: Any = SimpleNamespace(manifest=SimpleNamespace(streaming=None), respond=respond)
        server, address = HttpServer(Application({"m": model}, None), SETTINGS), socket.create_server(("127.0.0.1", 0))
        for name, value in {"ws_max_size": MOST_BYTES, **settings}.items():
            setattr(server.config, name, value)
        serving = asyncio.create_task(server.serve([address]))
        url = f"ws://127.0.0.1:{address.getsockname()[1]}/models/m/stream"
        async with connect(url, proxy=None) as stream, connect(url, proxy=None) as other:
            await act(Running(server, stream, other, released, asked))
        released.set()
        server.should_exit = True
        await serving
        assert HeldBody._all_bytes == 0

    asyncio.run(inner())


def test_a_client_that_sends_ahead_waits_and_gets_every_answer_in_order() -> None:
    async def act(found: Running) -> None:
        sending = asyncio.create_task(found.send(["x" * (300_000 + size) for size in range(200)]))
        await asyncio.sleep(1)
        assert (sending.done(), found.asked) == (False, [300_000])
        assert HeldBody._all_bytes < 3 * MOST_BYTES
        found.released.set()
        assert [int(await found.stream.recv()) for _ in range(200)] == [*range(300_000, 300_200)]
        await sending

    run(act)


def test_few_of_many_small_messages_are_parsed_and_no_ping_behind_them_is_missed() -> None:
    async def act(found: Running) -> None:
        sending = asyncio.create_task(found.send(["1"] * 20_000))
        await asyncio.sleep(2)
        queues = [one.queue.qsize() for one in found.server.server_state.connections]  # type: ignore[union-attr]
        assert max(queues) < 1000
        found.released.set()
        assert {await found.stream.recv() for _ in range(20_000)} == {"1"}
        await sending
        await asyncio.sleep(1)
        await found.send(["12"])
        assert await found.stream.recv() == "2"

    run(act, ws_ping_interval=0.2, ws_ping_timeout=0.5)


def test_messages_of_all_streams_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_bodies, "_MOST_BYTES", MOST_BYTES)

    async def act(found: Running) -> None:
        await found.send(["x" * 700_000])
        await asyncio.sleep(0.5)
        sending = asyncio.create_task(found.other.send("x" * 700_000))
        with pytest.raises(ConnectionClosed) as ended:
            await found.other.recv()
        await asyncio.gather(sending, return_exceptions=True)
        assert ended.value.rcvd is None or ended.value.rcvd.code == 1013
        found.released.set()
        assert await found.stream.recv() == "700000"

    run(act)


@pytest.mark.parametrize(("sent", "code"), [(b"", 1001), (HALF, 1001), (PARTS, 1009), (NOT_TEXT, 1007)])
def test_a_client_that_misbehaves_loses_its_stream(
    sent: bytes, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_connection, "_IDLE_SECONDS", 60 if sent else 1)
    monkeypatch.setattr(stream_connection, "_STALLED_SECONDS", 1)
    monkeypatch.setattr(stream_connection, "_MOST_BESIDE_MESSAGE", 4000)

    async def act(found: Running) -> None:
        found.stream.transport.write(sent)
        with pytest.raises(ConnectionClosed) as ended:
            await asyncio.wait_for(found.stream.recv(), 30)
        assert ended.value.rcvd is None or ended.value.rcvd.code == code

    run(act)
    assert caplog.text == ""
