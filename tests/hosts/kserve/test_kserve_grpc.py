"""The gRPC server of KServe's process hands on what its calls tell beside the message."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_calls import call, request
from tiny_archive import make_archive
from torchserve_process import free_ports

from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.hosts.kserve_grpc import GrpcServer
from torchserve_neuron_lstm.inference.errors import ArchiveError

NAME = "X-Request-Timeout-Ms"


def test_a_calls_deadline_and_metadata_are_headers_of_its_request(tmp_path: Path) -> None:
    asked: list[RawRequest] = []

    async def respond(raw: RawRequest) -> RawResponse:
        asked.append(raw)
        return RawResponse(503, b'{"type": "StoreUnavailable", "message": "later"}', headers={"Retry-After": "2"})

    async def run() -> list[Any]:
        manifest = read_manifest(make_archive(tmp_path / "sums"))
        archive: Any = SimpleNamespace(name="sums", version="1.0", manifest=manifest, respond=respond)
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


def test_a_port_of_another_server_is_refused() -> None:
    """By gRPC's default both would listen, and each would get some of the calls."""
    with ThreadPoolExecutor(1) as threads:
        other = grpc.server(threads)
        port = other.add_insecure_port("[::]:0")
        other.start()
        try:
            with pytest.raises(ArchiveError, match="Address already in use"):
                asyncio.run(GrpcServer(port, {}, 1 << 20).serve())
        finally:
            other.stop(None).wait()
