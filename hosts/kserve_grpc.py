"""The Open Inference Protocol over gRPC beside a REST server, in KServe's process or a built-in worker.

It imports no KServe, whose messages cannot be in one process with those of another client or server of the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

from grpc import StatusCode, aio

from .free_port import check_free
from .grpc.grpc_server import Archives, answer
from .grpc.methods import METHODS, add_inference_service
from .held_bodies import MOST_BYTES

_TIMEOUT = "X-Request-Timeout-Ms"
"""The header of REST for a deadline. Metadata have lower case, so a client's own counts beside it."""
_LONGEST_S = 1e6
"""A deadline that is further away is none."""
_BATCHES_AT_ONCE = 5
"""Largest batches of calls at a time. gRPC holds what came of each message, and tells nobody how much that is."""


def inference_server(
    archives: Archives, most_bytes: int, *, shares_port: bool, interceptors: Sequence[aio.ServerInterceptor] = ()
) -> aio.Server:
    """Make a server without a port. If that will be shared, a second server on it gets a part of the calls."""
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.so_reuseport", int(shares_port)),
    ]
    largest_batch = max(archive.manifest.grid.batches[-1] for archive in archives.values())
    most_calls = max(_BATCHES_AT_ONCE * largest_batch, MOST_BYTES // most_bytes)
    server = aio.server(options=options, interceptors=interceptors, maximum_concurrent_rpcs=most_calls)
    methods = {method: partial(_respond, method, archives) for method in METHODS}
    add_inference_service(SimpleNamespace(**methods), server)
    return server


class GrpcServer:
    """A server of archives by name, which `serve` runs until `stop`."""

    def __init__(self, port: int, archives: Archives, most_bytes: int) -> None:
        """`most_bytes` is the size of the largest message."""
        self._port = port
        self._archives = archives
        self._most_bytes = most_bytes
        self._server: aio.Server | None = None

    async def serve(self) -> None:
        """Answer calls, on all interfaces. Raises `ArchiveError`: the port is taken."""
        check_free("0.0.0.0", self._port)  # noqa: S104 - it listens there
        self._server = inference_server(self._archives, self._most_bytes, shares_port=False)
        self._server.add_insecure_port(f"[::]:{self._port}")
        await self._server.start()
        await self._server.wait_for_termination()

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls, and answer those that came, within this time."""
        if self._server is not None:
            await self._server.stop(grace_seconds)


async def _respond(method: str, archives: Archives, content: bytes, context: aio.ServicerContext) -> bytes:
    found = await answer(method, content, [*context.invocation_metadata(), *_deadline(context)], archives)
    del content  # `abort` raises an error whose cycle keeps this frame until garbage is searched for
    if found.code != "OK":
        await context.abort(StatusCode[found.code], found.details, found.trailing)
    return found.message


def _deadline(context: aio.ServicerContext) -> list[tuple[str, str]]:
    remaining = context.time_remaining()
    return [] if remaining is None or remaining > _LONGEST_S else [(_TIMEOUT, str(int(remaining * 1000)))]
