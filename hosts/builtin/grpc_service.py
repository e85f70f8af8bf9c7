"""gRPC of one worker: the service of the Open Inference Protocol, and gRPC's own health service."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health_pb2 import HealthCheckResponse

from ..grpc.grpc_server import Archives
from ..grpc.methods import SERVICE
from ..kserve_grpc import inference_server
from .grpc_streams import GrpcStreams
from .worker_processes import ServerSettings

_READY = f"/{SERVICE}/ServerReady"
_CHECK = f"/{SERVICE_NAME}/Check"
_HEALTH = (f"/{SERVICE}/ServerLive", _READY, _CHECK)


class GrpcService(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """The gRPC server of a worker, which refuses calls without the token before it reads their messages.

    All workers have the same port, and the system divides the connections.
    """

    def __init__(self, settings: ServerSettings, archives: Archives) -> None:
        """Take the port. Raises `RuntimeError`, `OSError`: it, or a file, cannot be used."""
        self._authorization = None if settings.token is None else f"Bearer {settings.token}".encode()
        self._is_draining = False
        most_bytes = 2 * max(one.manifest.limits.body_bytes for one in archives.values())  # beyond, nobody tells why
        self._server = inference_server(archives, most_bytes, shares_port=True, interceptors=[self])
        self._streams = GrpcStreams(archives)
        self._server.add_generic_rpc_handlers((self._streams.handler(),))
        address = f"{settings.host}:{settings.grpc_port}"
        if settings.cert is None or settings.key is None:
            self._server.add_insecure_port(address)
        else:
            pair = Path(settings.key).read_bytes(), Path(settings.cert).read_bytes()
            self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))

    async def start(self) -> None:
        """Answer calls."""
        await self._server.start()

    async def drain(self) -> None:
        """Say from now on that the server is not ready."""
        self._is_draining = True

    async def stop(self, seconds: float) -> None:
        """Take no more calls, and answer what came, within this time."""
        self._streams.end()
        await self._server.stop(seconds)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the handler of a call."""
        if details.method == _CHECK:
            return grpc.stream_unary_rpc_method_handler(self._check)
        if self._is_draining and details.method == _READY:
            return grpc.stream_unary_rpc_method_handler(_not_ready)
        given = str(dict(details.invocation_metadata).get("authorization", "")).encode()
        if details.method in _HEALTH or self._authorization is None or hmac.compare_digest(given, self._authorization):
            return await continuation(details)
        return grpc.stream_unary_rpc_method_handler(_refuse)

    async def _check(self, messages: object, context: aio.ServicerContext) -> bytes:
        """Return the health of the server, whichever service is asked for: a message without a token is not read."""
        status = HealthCheckResponse.NOT_SERVING if self._is_draining else HealthCheckResponse.SERVING
        return bytes(HealthCheckResponse(status=status).SerializeToString())


async def _not_ready(messages: object, context: aio.ServicerContext) -> bytes:
    return b""  # a ServerReadyResponse whose `ready` is false


async def _refuse(messages: object, context: aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected the metadata authorization: Bearer TOKEN")
