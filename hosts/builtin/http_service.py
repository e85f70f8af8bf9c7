"""HTTP of one worker: its application, and the bounds of its connections."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...handlers.formats.json_text import to_json
from ...handlers.responses import RequestError
from ..prometheus_metrics import page_of_processes
from ..rest import respond
from ..served_archive import HostedArchive
from .worker_processes import ANSWER_SECONDS, ServerSettings

MOST_CONNECTIONS = 1000
"""Connections that a worker has at once: it closes further ones."""
_MOST_BYTES_BESIDE_BODY = 1 << 16
"""Bytes of headers, and of what is not content within a body."""
_HEAD_SECONDS = 30
"""The time for the headers of a request, and for the first one of a connection."""
_KEEP_ALIVE_SECONDS = 75
"""The time until the next request of a connection: load balancers keep theirs for 60 seconds."""
_LAST_SECONDS = 0.5
"""The time in which requests arrive whose connections were the last ones to be accepted."""
_HEALTH = ("/ping", "/v2/health/ready", "/v2/health/live")


class Application:
    """The ASGI application of a worker: TorchServe's paths, SageMaker's, and the metrics."""

    is_draining = False
    """Whether the server is about to end: it is not ready, and keeps no connection."""

    def __init__(self, archives: Mapping[str, HostedArchive], token: str | None) -> None:
        self._archives = archives
        self._authorization = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        try:
            response = await self._respond(Request(scope, receive))
        except RequestError as error:
            body = to_json({"code": error.status, "type": error.kind, "message": error.message})
            response = Response(body, error.status, media_type="application/json")
        if self.is_draining:
            response.headers["connection"] = "close"
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = request.scope["path"]
        if path not in _HEALTH:
            self._check_token(request)
        elif self.is_draining and path != "/v2/health/live":
            raise RequestError("ServiceUnavailableException", "The server is about to end", status=503)
        if path == "/metrics" and request.method == "GET":
            page = await asyncio.to_thread(page_of_processes)
            return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})
        if path == "/invocations":
            request = Request({**request.scope, "path": f"/predictions/{self._only_model()}"}, request.receive)
        return await respond(request, self._archives)

    def _check_token(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if self._authorization is not None and not hmac.compare_digest(given, self._authorization):
            raise RequestError("InvalidKeyException", "expected the header Authorization: Bearer TOKEN", status=401)

    def _only_model(self) -> str:
        if len(self._archives) > 1:
            message = f"/invocations is for one model, this server has {len(self._archives)}: use /predictions/MODEL"
            raise RequestError("ResourceNotFoundException", message, status=404)
        return next(iter(self._archives))


class HttpServer(Server):
    """The HTTP server of a worker, which `should_exit` ends; signals are for its parent."""

    def __init__(self, application: Application, settings: ServerSettings) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # any client can cause its warnings
        config = Config(
            application,
            http=_BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=ANSWER_SECONDS,
            ssl_certfile=settings.cert,
            ssl_keyfile=settings.key,
        )
        super().__init__(config)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # a generator there
        """Leave the signals of the process as they are."""
        return nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and close those without a request once the last requests have arrived."""
        for server in self.servers:
            server.close()
        await asyncio.sleep(_LAST_SECONDS)
        await super().shutdown(sockets)


class _BoundedConnection(HttpToolsProtocol):
    """A connection that may not stay for ever, nor send headers without end."""

    _timer: asyncio.TimerHandle | None = None
    _beside_body = 0
    """Bytes that came since the beginning of the request, or since the last of its body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._abort_after(_HEAD_SECONDS if len(self.connections) <= MOST_CONNECTIONS else 0)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._abort_after(None)

    def data_received(self, data: bytes) -> None:
        self._beside_body += len(data)
        super().data_received(data)
        if self._beside_body > _MOST_BYTES_BESIDE_BODY and not self.transport.is_closing():
            self.send_400_response(f"the headers have more than {_MOST_BYTES_BESIDE_BODY} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._beside_body = 0
        self._abort_after(_HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        self._abort_after(None)  # the body has a time limit where it is read
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._abort_after(None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self.cycle.more_body:  # the client reads slowly, or sends what nobody reads
            self._abort_after(_KEEP_ALIVE_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_after(_HEAD_SECONDS)  # the client has not read the last response

    def _abort_after(self, seconds: float | None) -> None:
        """Set the time limit of what is awaited now, instead of the former one; None: it has none."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)
