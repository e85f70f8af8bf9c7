"""The gRPC server of KServe's process hands on what its calls tell beside the message."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from grpc_calls import call, request
from tiny_archive import make_archive
from torchserve_process import free_ports

from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.hosts import kserve_grpc
from torchserve_neuron_lstm.hosts.grpc.methods import SERVICE
from torchserve_neuron_lstm.hosts.kserve_grpc import GrpcServer
from torchserve_neuron_lstm.inference.errors import ArchiveError

NAME = "X-Request-Timeout-Ms"
REFUSED = RawResponse(503, b'{"type": "StoreUnavailable", "message": "later"}', headers={"Retry-After": "2"})


def archive_that_answers(respond: Callable[[RawRequest], Awaitable[RawResponse]], folder: Path) -> Any:
    return SimpleNamespace(name="sums", version="1.0", manifest=read_manifest(make_archive(folder)), respond=respond)


def test_a_calls_deadline_and_metadata_are_headers_of_its_request(tmp_path: Path) -> None:
    asked: list[RawRequest] = []

    async def respond(raw: RawRequest) -> RawResponse:
        asked.append(raw)
        return REFUSED

    async def run() -> list[Any]:
        archive = archive_that_answers(respond, tmp_path / "sums")
        (port,) = free_ports(1)
        server = GrpcServer(port, {"sums": archive}, 1 << 20)
        serving = asyncio.create_task(server.serve())
        content = request("sums").SerializeToString()
        metadata = [("x-request-timeout-ms", "70")]
        found = [
            await asyncio.to_thread(call, port, "ModelInfer", content, metadata, 60.0),
            await asyncio.to_thread(call, port, "ModelInfer", content, (), None),
        ]
        await server.stop(1)
        await serving
        return found

    found = asyncio.run(run())

    assert [(one.code, one.trailing["retry-after"]) for one in found] == [("UNAVAILABLE", "2")] * 2
    assert 0 < int(str(asked[0].headers[NAME])) <= 60_000
    assert asked[0].headers["x-request-timeout-ms"] == "70"
    assert NAME not in asked[1].headers


def test_no_more_calls_are_taken_at_a_time_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kserve_grpc, "_MOST_CALLS", 20)

    async def run() -> list[str]:
        answered, taken = asyncio.Event(), asyncio.Semaphore(0)

        async def respond(raw: RawRequest) -> RawResponse:
            taken.release()
            await answered.wait()
            return REFUSED

        (port,) = free_ports(1)
        server = GrpcServer(port, {"sums": archive_that_answers(respond, tmp_path / "sums")}, 1 << 20)
        serving = asyncio.create_task(server.serve())
        content = request("sums").SerializeToString()
        with ThreadPoolExecutor(21) as threads:

            def ask() -> asyncio.Future[Any]:
                return asyncio.get_running_loop().run_in_executor(threads, call, port, "ModelInfer", content, (), 60.0)

            waiting = [ask() for _ in range(20)]
            for _ in waiting:
                await taken.acquire()
            beyond = await ask()
            answered.set()
            codes = [beyond.code, *(one.code for one in await asyncio.gather(*waiting))]
        await server.stop(1)
        await serving
        return codes

    assert asyncio.run(run()) == ["RESOURCE_EXHAUSTED", *["UNAVAILABLE"] * 20]


def test_a_call_whose_message_does_not_come_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients could hold all calls of a server that way."""
    monkeypatch.setattr(kserve_grpc, "_MESSAGE_SECONDS", 0.05)

    def ask(port: int) -> tuple[str, str]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(60)
            method, never = f"/{SERVICE}/ModelInfer", threading.Event()
            with pytest.raises(grpc.RpcError) as silent:
                channel.stream_unary(method)(iter(never.wait, True), timeout=60)
            never.set()
            with pytest.raises(grpc.RpcError) as empty:
                channel.stream_unary(method)(iter(()), timeout=60)
        return str(silent.value.code().name), str(empty.value.code().name)

    async def run() -> tuple[str, str]:
        (port,) = free_ports(1)
        server = GrpcServer(port, {"sums": archive_that_answers(Mock(), tmp_path / "sums")}, 1 << 20)
        serving = asyncio.create_task(server.serve())
        found = await asyncio.to_thread(ask, port)
        await server.stop(1)
        await serving
        return found

    assert asyncio.run(run()) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")


def test_a_port_of_another_server_is_refused(tmp_path: Path) -> None:
    """By gRPC's default both would listen, and each would get some of the calls."""
    with ThreadPoolExecutor(1) as threads:
        other = grpc.server(threads)
        port = other.add_insecure_port("[::]:0")
        other.start()
        archive = archive_that_answers(Mock(), tmp_path / "sums")
        try:
            with pytest.raises(ArchiveError, match="Address already in use"):
                asyncio.run(GrpcServer(port, {"sums": archive}, 1 << 20).serve())
        finally:
            other.stop(None).wait()
