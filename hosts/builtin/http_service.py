"""HTTP of one worker: its application, and the bounds of its connections."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected

from ...handlers.formats.json_text import to_json
from ...handlers.responses import RequestError
from ..grpc.grpc_server import Archives
from ..prometheus_metrics import page_of_processes
from ..rest import respond
from .stream import answer_stream
from .stream_connection import StreamConnection
from .worker_processes import ANSWER_SECONDS, ServerSettings

MOST_CONNECTIONS = 1000
"""Connections that a worker has at once: it closes further ones."""
_MOST_PIPELINED = 100
"""Requests of a connection that came before the answers to those before them."""
_MOST_BYTES_BESIDE_BODY = 1 << 16
"""Bytes of headers, and of what is not content within a body."""
_IDLE_SECONDS = 75
"""The time from a response to the next headers, and in which it must be read: load balancers keep connections 60 s."""
_LAST_SECONDS = 0.5
"""The time in which requests arrive whose connections were the last ones to be accepted."""
_HEALTH = ("/ping", "/v2/health/ready", "/v2/health/live")


class Application:
    """The ASGI application of a worker: TorchServe's paths, SageMaker's, streams, and the metrics."""

    is_draining = False
    """Whether the server is about to end: it is not ready, and keeps no connection."""

    def __init__(self, archives: Archives, token: str | None, origins: Collection[str] = ()) -> None:
        """`origins` are those of other servers whose pages may open streams."""
        self._archives = archives
        self._origins = origins
        self._authorization = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or all messages of one stream."""
        try:
            self._check_token(scope)
            if scope["type"] == "websocket":
                await answer_stream(scope, receive, send, self._archives, self._origins)
                return
            response = await self._respond(Request(scope, receive))
        except RequestError as error:
            body = to_json({"code": error.status, "type": error.kind, "message": error.message})
            response = Response(body, error.status, media_type="application/json")
        if self.is_draining:
            response.headers["connection"] = "close"
        await response(scope, receive, send)
        if scope["type"] == "websocket":
            raise ClientDisconnected  # else uvicorn logs an error: there was no handshake

    def _check_token(self, scope: Scope) -> None:
        if self._authorization is None or scope["path"] in _HEALTH:
            return
        given = Headers(scope=scope).get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, self._authorization):
            raise RequestError("InvalidKeyException", "expected the header Authorization: Bearer TOKEN", status=401)

    async def _respond(self, request: Request) -> Response:
        path = request.scope["path"]
        if path in _HEALTH and self.is_draining and path != "/v2/health/live":
            raise RequestError("ServiceUnavailableException", "The server is about to end", status=503)
        if path == "/metrics" and request.method == "GET":
            page = await asyncio.to_thread(page_of_processes)
            return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})
        if path == "/invocations":
            if len(self._archives) > 1:
                message = "/invocations is for one model, this server has several: use /predictions/MODEL"
                raise RequestError("ResourceNotFoundException", message, status=404)
            request = Request({**request.scope, "path": f"/predictions/{next(iter(self._archives))}"}, request.receive)
        return await respond(request, self._archives)


class HttpServer(Server):
    """The HTTP server of a worker, which `should_exit` ends; signals are for its parent."""

    def __init__(self, application: Application, settings: ServerSettings) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # any client can cause its warnings
        options: dict[str, Any] = {"lifespan": "off", "log_config": None, "access_log": False}
        config = Config(
            application,
            http=_BoundedConnection,
            ws=StreamConnection,
            ws_per_message_deflate=False,  # a small message could be a large chunk
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=ANSWER_SECONDS,
            ssl_certfile=settings.cert,
            ssl_keyfile=settings.key,
            **options,
        )
        super().__init__(config)
        self._idle_since: dict[object, float] = {}

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # a generator there
        """Leave the signals of the process as they are."""
        return nullcontext()

    async def on_tick(self, counter: int) -> bool:
        """Close connections that wait too long for a request or a message, or whose clients read no response."""
        if counter % 10 == 0:  # each second
            former, self._idle_since, now = self._idle_since, {}, time.monotonic()
            for one in [*self.server_state.connections]:
                if isinstance(one, (_BoundedConnection, StreamConnection)) and (waits := one.waits_for()) is not None:
                    what, seconds = waits
                    since = self._idle_since[one, what] = former.get((one, what), now)
                    if now > since + seconds:
                        one.give_up()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and close those without a request once the last requests have arrived."""
        for server in self.servers:
            server.close()
        await asyncio.sleep(_LAST_SECONDS)
        await super().shutdown(sockets)


class _BoundedConnection(HttpToolsProtocol):
    """A connection that is one of few, and that sends no headers without end."""

    _beside_body = 0
    """Bytes that came since the beginning of the request, or since the last of its body."""

    def waits_for(self) -> tuple[object, float] | None:
        """Return after which request the client has to act, and the time that it has; None: it waits for the server."""
        is_between = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first
        return (self.cycle, _IDLE_SECONDS) if is_between or self.flow.write_paused else None

    def give_up(self) -> None:
        """End the connection of a client that had its time."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._beside_body += len(data)
        super().data_received(data)
        if self._beside_body > _MOST_BYTES_BESIDE_BODY and not self.transport.is_closing():
            self.send_400_response(f"the headers have more than {_MOST_BYTES_BESIDE_BODY} bytes")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError("too many requests wait for an answer")  # the parser ends the connection with 400
        super().on_message_begin()
        self._beside_body = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._beside_body = 0
