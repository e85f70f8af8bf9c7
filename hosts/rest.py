"""The REST API of archives in one process, for a server with the ASGI interface.

Paths and statuses are those of TorchServe. Its errors of routing have the same types.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Literal, NamedTuple

import anyio
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from ..handlers.formats.json_text import to_json
from ..handlers.formats.raw_request import REPEATED, RawRequest
from ..handlers.responses import RequestError, http_headers
from .held_bodies import HeldBody
from .metadata import model_metadata, server_metadata
from .served_archive import HostedArchive

_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
_FORM_BYTES = 1 << 16
"""Bytes of a form beside those of its fields."""
_FORM_AT_ONCE = 1 << 16
"""Bytes of the largest form for which other requests wait: its parser is Python that looks at each."""
_MOST_FIELDS = 1000
_MOST_ESCAPES = 200_000
"""Escapes (%2C) and ends of fields in a form. Its parser makes objects for each, and an exception for a wrong one."""
_COSTLY = (b"%", b"&", b";")
_LARGE_FORMS = ThreadPoolExecutor(1, "large-forms")
"""The thread that parses large forms, one at a time: each takes many times its size."""
_MOST_HEADER_BYTES = 1 << 16
_BODY_SECONDS, _BODY_BYTES_PER_SECOND = 30.0, 1 << 16
"""Time in which a body must have come: a fixed one, and what its bytes take of a slow connection."""
_CHARSETS = (b"utf-8", b"utf8", b"iso-8859-1", b"latin-1", b"latin1", b"us-ascii", b"ascii")
"""Charsets of forms. Others are decoded in quadratic time, or Python keeps the name because it does not know it."""
_MOST_CHARACTERS = 200
_SERVER_HEADERS = ("describe", "explain")
"""Headers by which TorchServe's frontend asks its workers; those of a client are ignored."""


async def respond(request: Request, archives: Mapping[str, HostedArchive]) -> Response:
    """Answer one HTTP request to the models, by name. An archive may be replaced while a request waits."""
    try:
        route = find_route(request.method, _path(request))
        if not route.model:
            return await _of_server(route, archives)
        archive = find_archive(route.model, route.version, archives)
        if route.action == "infer":
            return await _infer(route, archive, archives, request)
        return await _of_model(route, archive)
    except RequestError as error:
        response = _json(error.status, {"code": error.status, "type": error.kind, "message": error.message})
        if error.status == HTTPStatus.REQUEST_TIMEOUT:
            response.headers["connection"] = "close"  # the rest of its body may still come
        return response


def find_archive(name: str, version: str, archives: Mapping[str, HostedArchive]) -> HostedArchive:
    """Return the archive of this name, and of this version unless that is empty.

    Raises `RequestError`: 404, there is none.
    """
    archive = archives.get(name)
    if archive is None:
        raise RequestError("ModelNotFoundException", f"Model not found: {_shortened(name)}", status=404)
    if version and version != archive.version:
        message = f"Model version: {_shortened(version)} does not exist for model: {name}"
        raise RequestError("ModelVersionNotFoundException", message, status=404)
    return archive


async def _of_model(route: Route, archive: HostedArchive) -> Response:
    if route.action == "model metadata":
        return _json(200, model_metadata(archive.name, archive.version, archive.manifest))
    found = await archive.readiness()
    return _json(200 if found["ready"] else 503, {"name": archive.name, **found})


async def _infer(
    route: Route, archive: HostedArchive, archives: Mapping[str, HostedArchive], request: Request
) -> Response:
    archive.check_queue()  # before it costs memory to read the body
    most = archive.manifest.limits.body_bytes
    with HeldBody(most + _FORM_BYTES) as held:
        try:
            raw = await raw_request(request, most, held)
        except ClientDisconnect:
            return Response(status_code=499)  # no client reads it
        # It may have been replaced, or removed, while the body was read.
        response = await find_archive(route.model, route.version, archives).respond(raw)
    content_type, others = http_headers(response)
    return Response(response.body, response.status, {**others, "content-type": content_type})


async def _of_server(route: Route, archives: Mapping[str, HostedArchive]) -> Response:
    if route.action == "server metadata":
        return _json(200, server_metadata())
    if route.action == "live":
        return _json(200, {"live": True})
    found = await not_ready(archives)
    if route.action == "ping":
        return _json(500 if found else 200, {"status": "Unhealthy" if found else "Healthy"})
    return _json(503, {"ready": False, "models": found}) if found else _json(200, {"ready": True})


async def not_ready(archives: Mapping[str, HostedArchive]) -> dict[str, object]:
    """Try all models, and return the readiness of those that are not ready, by name."""
    found: dict[str, object] = {}
    for name in [*archives]:
        archive = archives.get(name)  # none is kept across an await: a former one is closed
        if archive is not None and not (told := await archive.readiness())["ready"]:
            found[name] = told
    return found


async def raw_request(request: Request, most_bytes: int, held: HeldBody) -> RawRequest:
    """Read the body and headers of an HTTP request, as TorchServe gives them to a handler.

    Query parameters are fields of the row, as the fields of a form are. A body beyond the bound is not kept.

    Raises `RequestError`: 503, `held` has no room for the body; 431, the headers are too long; 408, the body is slow.
    """
    size = sum(len(name) + len(value) for name, value in request.scope["headers"])
    if size > _MOST_HEADER_BYTES:  # texts of some headers are kept
        raise RequestError(
            "InvalidInput", f"the headers have {size} bytes: at most {_MOST_HEADER_BYTES} are accepted", status=431
        )
    # Of a header that comes twice, the first one counts. Starlette's mapping looks every name up again.
    given = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in reversed(request.scope["headers"]))
    headers: dict[str, object] = {name: value for name, value in given if name not in _SERVER_HEADERS}
    row: dict[str, object] = {}
    for name, value in request.query_params.multi_items() if request.scope["query_string"] else ():
        row[name] = REPEATED if name in row else value.encode()
    is_form = request.headers.get("content-type", "").partition(";")[0].strip().lower() in _FORMS
    body, size = await _read(request, most_bytes + _FORM_BYTES * is_form, held)
    if body is None:
        return RawRequest({"body": None}, {**headers, "content-length": str(size)})
    if is_form:
        return await _form_request(request, body, row, headers)
    if body or not row:
        row["body"] = body
    return RawRequest(row, headers)


def _path(request: Request) -> str:
    """Return the path below the prefix under which the server has put these routes."""
    path: str = request.scope["path"]
    prefix: str = request.scope.get("root_path", "").rstrip("/")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


async def _read(request: Request, most_bytes: int, held: HeldBody) -> tuple[bytes | None, int]:
    """Read the body to its end, and keep it if it is within the bound; returns its size too.

    Raises `RequestError`: 408, it comes too slowly: what is held for it is refused to others.
    """
    body, size = bytearray(), 0
    try:
        with anyio.fail_after(_BODY_SECONDS) as limit:
            end = limit.deadline
            async for part in request.stream():
                size += len(part)
                limit.deadline = end + size / _BODY_BYTES_PER_SECOND
                if size <= most_bytes:
                    held.add(len(part))
                    body += part
                else:
                    body.clear()
                    held.drop()
    except TimeoutError:
        message = f"{size} bytes of the body came in time: send it faster, or a smaller one"
        raise RequestError("BodyTooSlow", message, status=HTTPStatus.REQUEST_TIMEOUT) from None
    return (bytes(body), size) if size <= most_bytes else (None, size)


async def _form_request(
    request: Request, body: bytes, row: dict[str, object], headers: dict[str, object]
) -> RawRequest:
    """Parse a form. One that cannot be parsed has no fields, as in TorchServe."""
    kind, parameters = parse_options_header(request.headers["content-type"])
    if parameters.get(b"charset", b"utf-8").lower() not in _CHARSETS:
        return RawRequest({}, headers)
    if kind == b"application/x-www-form-urlencoded" and sum(map(body.count, _COSTLY)) > _MOST_ESCAPES:
        return RawRequest({}, headers)

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    parse = partial(_fields, Request(request.scope, receive), len(body))
    try:
        is_small = len(body) <= _FORM_AT_ONCE
        loop = asyncio.get_running_loop()
        fields = await (parse() if is_small else loop.run_in_executor(_LARGE_FORMS, lambda: asyncio.run(parse())))
    except (HTTPException, MultiPartException):
        return RawRequest({}, headers)
    for field in fields:
        row[field.name] = REPEATED if field.name in row else field.content
        if field.content_type:
            headers.setdefault(field.name, {"content-type": field.content_type})  # never instead of HTTP's own
    return RawRequest(row, headers)


class _Field(NamedTuple):
    """A field of a form."""

    name: str
    content: bytes
    content_type: str | None


async def _fields(request: Request, most_bytes: int) -> list[_Field]:
    """Return the fields of a form, of which each has at most `most_bytes`.

    Raises `HTTPException`, `MultiPartException`: it cannot be parsed, or has too many.
    """
    fields = []
    async with request.form(max_files=_MOST_FIELDS, max_fields=_MOST_FIELDS, max_part_size=most_bytes) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                fields.append(_Field(name, await value.read(), value.content_type))
            else:
                fields.append(_Field(name, value.encode(), None))
    return fields


def _shortened(name: str) -> str:
    # gRPC bounds the details of an error: beyond, the client has another error.
    return name if len(name) <= _MOST_CHARACTERS else f"{name[:_MOST_CHARACTERS]}..."


def _json(status: int, value: Mapping[str, object]) -> Response:
    return Response(to_json(dict(value)), status, media_type="application/json")


_Action = Literal["infer", "model metadata", "model ready", "server metadata", "live", "ready", "ping"]


class Route(NamedTuple):
    """The action that a request asks for, and the model that it names."""

    action: _Action
    model: str = ""
    version: str = ""


_MODEL = r"(?P<model>[^/:]+)"
_PATTERNS: tuple[tuple[str, str, _Action], ...] = (
    ("POST PUT", rf"/predictions/{_MODEL}(?:/(?P<version>[^/]+))?", "infer"),
    ("POST", rf"/v1/models/{_MODEL}:predict", "infer"),
    ("POST", rf"/v2/models/{_MODEL}(?:/versions/(?P<version>[^/]+))?/infer", "infer"),
    ("GET", rf"/v1/models/{_MODEL}", "model ready"),
    ("GET", rf"/v2/models/{_MODEL}(?:/versions/(?P<version>[^/]+))?/ready", "model ready"),
    ("GET", rf"/v2/models/{_MODEL}(?:/versions/(?P<version>[^/]+))?", "model metadata"),
    ("GET", r"/v2/?", "server metadata"),
    ("GET", r"/v2/health/live", "live"),
    ("GET", r"/v2/health/ready", "ready"),
    ("GET", r"/ping", "ping"),
)
_ROUTES = tuple((frozenset(methods.split()), re.compile(pattern), action) for methods, pattern, action in _PATTERNS)


def find_route(method: str, path: str) -> Route:
    """Return the route of a request.

    >>> find_route("POST", "/predictions/tagger/1.0")
    Route(action='infer', model='tagger', version='1.0')
    >>> find_route("GET", "/v2/models/tagger/ready").action
    'model ready'

    Raises `RequestError`: 404, none has this path; 405, none has it for this method.
    """
    kind, status = "ResourceNotFoundException", HTTPStatus.NOT_FOUND
    for methods, pattern, action in _ROUTES:
        if (found := pattern.fullmatch(path)) is not None:
            kind, status = "MethodNotAllowedException", HTTPStatus.METHOD_NOT_ALLOWED
            if method in methods:
                named = found.groupdict()
                return Route(action, named.get("model") or "", named.get("version") or "")
    said = f"{status.description}, please check the documentation of the server"
    raise RequestError(kind, said, status=status.value)
