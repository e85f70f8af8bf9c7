"""gRPC of one worker: the service of the Open Inference Protocol, and gRPC's own health service."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health import aio as health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from ..grpc.methods import SERVICE
from ..kserve_grpc import inference_server
from ..served_archive import HostedArchive
from .worker_processes import ServerSettings

_MOST_BYTES = 1 << 26
"""The largest message that is received; a model's own bound is checked before it is parsed."""
_READY = f"/{SERVICE}/ServerReady"
_HEALTH = (f"/{SERVICE}/ServerLive", _READY, f"/{SERVICE_NAME}/Check", f"/{SERVICE_NAME}/Watch")


class GrpcService:
    """The gRPC server of a worker. All workers have the same port, and the system divides the connections."""

    def __init__(self, settings: ServerSettings, archives: Mapping[str, HostedArchive]) -> None:
        self._settings = settings
        self._gate = _Gate(settings.token)
        self._health = health.HealthServicer()
        self._server = inference_server(archives, _MOST_BYTES, [self._gate], shares_port=True)
        add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> None:
        """Answer calls. Raises `RuntimeError`, `OSError`: the port or a file cannot be used."""
        self._add_port()
        await self._health.set(SERVICE, HealthCheckResponse.SERVING)
        await self._server.start()

    def _add_port(self) -> None:
        settings, address = self._settings, f"{self._settings.host}:{self._settings.grpc_port}"
        if settings.cert is None or settings.key is None:
            self._server.add_insecure_port(address)
        else:
            pair = Path(settings.key).read_bytes(), Path(settings.cert).read_bytes()
            self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))

    def drain(self) -> None:
        """Say from now on that the server is not ready."""
        self._gate.is_draining = True
        self._draining = asyncio.ensure_future(self._health.enter_graceful_shutdown())

    async def stop(self, seconds: float) -> None:
        """Take no more calls, and answer those that came, within this time."""
        await self._server.stop(seconds)


class _Gate(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Refuses calls without the token before their messages are read."""

    is_draining = False

    def __init__(self, token: str | None) -> None:
        self._authorization = None if token is None else f"Bearer {token}".encode()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        if self.is_draining and details.method == _READY:
            return grpc.unary_unary_rpc_method_handler(_not_ready)
        if details.method in _HEALTH or self._authorization is None:
            return await continuation(details)
        given = dict(details.invocation_metadata).get("authorization", "")
        if hmac.compare_digest(str(given).encode(), self._authorization):
            return await continuation(details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _not_ready(message: bytes, context: aio.ServicerContext) -> bytes:
    return b""  # a ServerReadyResponse whose `ready` is false


async def _refuse(message: bytes, context: aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected the metadata authorization: Bearer TOKEN")
