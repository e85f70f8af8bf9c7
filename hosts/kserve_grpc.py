"""The Open Inference Protocol over gRPC beside a REST server, in KServe's process or a built-in worker.

It imports no KServe, whose messages cannot be in one process with those of another client or server of the protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

import anyio
from grpc import StatusCode, aio, method_handlers_generic_handler, stream_unary_rpc_method_handler

from .free_port import check_free
from .grpc.grpc_server import Archives, answer
from .grpc.methods import METHODS, SERVICE

_TIMEOUT = "X-Request-Timeout-Ms"
"""The header of REST for a deadline. Metadata have lower case, so a client's own counts beside it."""
_LONGEST_S = 1e6
"""A deadline that is further away is none."""
_MOST_CALLS = 1000
_IDLE_MS = 75_000  # of a connection without calls, as of one of HTTP
_MESSAGE_SECONDS = 30.0
"""The time in which a call's message must come. gRPC holds what came of it, and tells nobody how much that is."""


def inference_server(
    archives: Archives, most_bytes: int, *, shares_port: bool, interceptors: Sequence[aio.ServerInterceptor] = ()
) -> aio.Server:
    """Make a server without a port. If that will be shared, a second server on it gets a part of the calls."""
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
    ]
    server = aio.server(options=options, interceptors=interceptors, maximum_concurrent_rpcs=_MOST_CALLS)
    # Of a stream, which has one message here, the handler is called before the message is there.
    handlers = {method: stream_unary_rpc_method_handler(partial(_respond, method, archives)) for method in METHODS}
    server.add_generic_rpc_handlers((method_handlers_generic_handler(SERVICE, handlers),))
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


async def _respond(
    method: str, archives: Archives, messages: AsyncIterator[bytes], context: aio.ServicerContext
) -> bytes:
    try:
        with anyio.fail_after(_MESSAGE_SECONDS):
            content = await anext(messages)
    except (TimeoutError, StopAsyncIteration):
        await context.abort(StatusCode.DEADLINE_EXCEEDED, f"the message did not come within {_MESSAGE_SECONDS:g} s")
    found = await answer(method, content, [*context.invocation_metadata(), *_deadline(context)], archives)
    del content  # `abort` raises an error whose cycle keeps this frame until garbage is searched for
    if found.code != "OK":
        await context.abort(StatusCode[found.code], found.details, found.trailing)
    return found.message


def _deadline(context: aio.ServicerContext) -> list[tuple[str, str]]:
    remaining = context.time_remaining()
    return [] if remaining is None or remaining > _LONGEST_S else [(_TIMEOUT, str(int(remaining * 1000)))]
