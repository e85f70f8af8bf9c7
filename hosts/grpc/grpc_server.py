"""The Open Inference Protocol over gRPC, for the archives of one process.

Servers differ in how they start a call and send its status; the bytes of requests and responses, the codes and the
metadata are the same on all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...handlers.formats.raw_request import RawRequest
from ...handlers.responses import RawResponse, RequestError
from ...handlers.streaming.stream_sessions import StreamSessions
from ..held_bodies import HeldBody
from ..metadata import model_metadata, server_metadata
from ..rest import find_archive, not_ready
from ..served_archive import HostedArchive
from .infer import Metadata, infer_response, parse, rest_request
from .messages import GrpcAnswer, message_class, refused

Archives = Mapping[str, HostedArchive]
_BESIDE_TENSORS = 1 << 16
"""Bytes of a message beside those that its body over REST has."""
_FEW_BYTES = 1 << 12
"""Bytes of a message that is read at once: another thread takes longer."""


async def answer(method: str, content: bytes, metadata: Metadata, archives: Archives) -> GrpcAnswer:
    """Answer one call of a method of the service. An archive may be replaced while a request waits.

    `metadata` has the client's: session fields and deadlines count as they do in headers of REST.
    """
    try:
        return GrpcAnswer(await _respond(method, content, metadata, archives))
    except RequestError as error:
        return refused(error)


async def answer_in_stream(content: bytes, metadata: Metadata, archives: Archives, sessions: StreamSessions) -> bytes:
    """Answer one message of ModelStreamInfer, once those before it are answered. `sessions` are those of its stream.

    An error ends no stream: its type is a parameter of the response.
    """
    told, answered = message_class("ModelStreamInferResponse")(), RawResponse(500, b"")
    try:
        answered = await _asked(content, metadata, archives, sessions)
        told.infer_response.MergeFromString(infer_response(answered))
    except RequestError as error:
        told.error_message = error.message
        told.infer_response.parameters["error_type"].string_param = error.kind
    sessions.note(answered)
    message: bytes = told.SerializeToString()
    return message


async def _respond(method: str, content: bytes, metadata: Metadata, archives: Archives) -> bytes:
    if method == "ModelInfer":
        return infer_response(await _asked(content, metadata, archives))
    request = parse(f"{method}Request", content)
    if method == "ServerLive":
        return _message(method, {"live": True})
    if method == "ServerReady":
        return _message(method, {"ready": not await not_ready(archives)})
    if method == "ServerMetadata":
        return _message(method, server_metadata())
    if method == "ModelReady":
        return _message(method, {"ready": await _is_ready(request.name, request.version, archives)})
    archive = find_archive(request.name, request.version, archives)
    return _message(method, model_metadata(archive.name, archive.version, archive.manifest))


async def _is_ready(name: str, version: str, archives: Archives) -> bool:
    """Whether a model is ready; an unknown one is not, as in Triton."""
    try:
        archive = find_archive(name, version, archives)
    except RequestError:
        return False
    return bool((await archive.readiness())["ready"])


async def _asked(
    content: bytes, metadata: Metadata, archives: Archives, sessions: StreamSessions | None = None
) -> RawResponse:
    read = partial(_read_request, content, metadata, archives)
    with HeldBody(len(content)) as held:
        held.add(len(content))
        # Whoever asks besides does not wait for a message that may have many fields.
        (name, version), request = await asyncio.to_thread(read) if len(content) > _FEW_BYTES else read()
        archive = _find(name, version, archives)  # it may have been replaced, or removed, meanwhile
        return await archive.respond(request._replace(stream=sessions))


def _read_request(content: bytes, metadata: Metadata, archives: Archives) -> tuple[tuple[str, str], RawRequest]:
    """Return the name and version that a message asks for, and its request over REST.

    What is beyond any model's limits is not parsed.
    """
    most = max((archive.manifest.limits.body_bytes for archive in archives.values()), default=0)
    if len(content) > most + _BESIDE_TENSORS:
        raise RequestError("BodyTooLarge", f"the message has {len(content)} bytes, one request may have at most {most}")
    tensors = max((len(one.manifest.inputs) * one.manifest.limits.sequences for one in archives.values()), default=0)
    message = parse("ModelInferRequest", content, tensors)
    asked = message.model_name, message.model_version
    archive = _find(*asked, archives)
    return asked, rest_request(message, metadata, archive.manifest.limits.body_bytes)


def _find(name: str, version: str, archives: Archives) -> HostedArchive:
    """Return the archive that answers requests over gRPC. Raises `RequestError`: 404, there is none; 501."""
    archive = find_archive(name, version, archives)
    if archive.manifest.codec is not None:
        told = f"model {archive.name} reads requests by a codec: send them over REST"
        raise RequestError("CodecOverGrpc", told, status=501)
    return archive


def _message(method: str, fields: Mapping[str, Any]) -> bytes:
    content: bytes = message_class(f"{method}Response")(**fields).SerializeToString()
    return content
