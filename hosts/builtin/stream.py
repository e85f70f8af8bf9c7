"""Streams over WebSockets: each message of a client is a request, and the next message to the client its answer.

The chunks of all clients share batches with requests over REST. Those of one stream are computed one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from ...handlers.formats.json_text import to_json
from ...handlers.formats.raw_request import RawRequest
from ...handlers.responses import JSON, NPY, RawResponse, RequestError, http_headers
from ...handlers.streaming.fields import find_session_fields, read_session_fields
from ...handlers.streaming.stream_sessions import StreamSessions
from ..grpc.grpc_server import Archives
from ..rest import find_archive
from ..served_archive import HostedArchive

_PATH = re.compile(r"/models/(?P<model>[^/:]+)/stream")
_TEXT = {"content-type": JSON}
_BINARY = {"content-type": NPY, "accept": f"{NPY}, {JSON}"}
"""Headers of messages. An array is the answer to an array, unless the model has several outputs."""
_TIMEOUT = "x-request-timeout-ms"


async def answer_stream(
    scope: Scope, receive: Receive, send: Send, archives: Archives, origins: Collection[str]
) -> None:
    """Answer the chunks of one connection in order, until it ends. An archive may be replaced meanwhile.

    Raises `RequestError`: it is refused before it begins, as with 404 if there is no such model.
    """
    request = HTTPConnection(scope)
    _check_origin(request.headers, origins)
    if (found := _PATH.fullmatch(scope["path"])) is None:
        raise RequestError("ResourceNotFoundException", "expected the path /models/MODEL/stream", status=404)
    archive = find_archive(found["model"], "", archives)
    sessions, headers = _sessions(request, archive), _kept_headers(request.headers, archive)
    await receive()  # that it wants to connect
    await send({"type": "websocket.accept"})
    del request, scope  # an idle stream holds little
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        body, kind = (message["bytes"], _BINARY) if text is None else (text.encode(), _TEXT)
        raw = RawRequest({"body": body}, {**headers, **kind}, stream=sessions)
        del message, text, body
        try:
            response = await find_archive(found["model"], "", archives).respond(raw)
        except RequestError as error:
            told = {"code": error.status, "type": error.kind, "message": error.message}
            response = RawResponse(error.status, to_json(told))
        if sessions is not None:
            sessions.note(response)
        await send(_message(response))


def _message(response: RawResponse) -> Message:
    content_type, _ = http_headers(response)
    if content_type == JSON or content_type.startswith("text/"):
        return {"type": "websocket.send", "text": response.body.decode("utf-8", "replace")}
    return {"type": "websocket.send", "bytes": response.body}


def _sessions(request: HTTPConnection, archive: HostedArchive) -> StreamSessions | None:
    """Return the session with which a stream begins, from the same fields as over REST; None: the model has none.

    Raises `RequestError`: 400, a field is not valid.
    """
    settings = archive.manifest.streaming
    if settings is None:
        return None
    fields = RawRequest({**request.query_params}, {**request.headers})
    found, _ = find_session_fields(fields, settings.fields, lambda body: False)
    return StreamSessions(read_session_fields(found, settings.fields))


def _kept_headers(given: Mapping[str, str], archive: HostedArchive) -> dict[str, object]:
    """Return the headers that count for each chunk."""
    settings = archive.manifest.streaming
    names = (_TIMEOUT, "" if settings is None else (settings.client_header or "").lower())
    return {name: given[name] for name in names if name in given}


def _check_origin(headers: Mapping[str, str], allowed: Collection[str]) -> None:
    """Refuse pages of other servers: browsers let each of them open streams, and read the answers.

    Raises `RequestError`: 403.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed or origin.partition("://")[2] == headers.get("host"):
        return
    message = "pages of this origin may not open streams: start the server with --allow-origin and the origin"
    raise RequestError("OriginNotAllowed", message, status=403)
