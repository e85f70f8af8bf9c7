"""ModelStreamInfer, an extension of the Open Inference Protocol by Triton: many requests and answers in one call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
from grpc import GenericRpcHandler, StatusCode, aio, method_handlers_generic_handler, stream_stream_rpc_method_handler

from ...handlers.streaming.stream_sessions import StreamSessions
from ..grpc.grpc_server import Archives, answer_in_stream
from ..grpc.methods import SERVICE

_IDLE_SECONDS = 600
"""The time in which the next message must have come. gRPC holds what came of it."""


class GrpcStreams:
    """The streams of a server. Each message is answered before the next one of its stream is read."""

    def __init__(self, archives: Archives) -> None:
        self._archives = archives
        self._waiting: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    def handler(self) -> GenericRpcHandler:
        """Return the method for a server."""
        return method_handlers_generic_handler(
            SERVICE, {"ModelStreamInfer": stream_stream_rpc_method_handler(self._respond)}
        )

    def end(self) -> None:
        """End each stream once the message in work is answered: clients call again, and continue."""
        self._is_ending = True
        for one in self._waiting:
            one.cancel()

    async def _respond(self, messages: AsyncIterator[bytes], context: aio.ServicerContext) -> AsyncIterator[bytes]:
        sessions, metadata = StreamSessions(), [*context.invocation_metadata()]
        while (content := await self._next(messages, context)) is not None:
            yield await answer_in_stream(content, metadata, self._archives, sessions)

    async def _next(self, messages: AsyncIterator[bytes], context: aio.ServicerContext) -> bytes | None:
        """Return the next message; None: the client sends no more."""
        task = asyncio.current_task()
        assert task is not None
        if self._is_ending:
            await self._abort(context)
        self._waiting.add(task)
        try:
            with anyio.fail_after(_IDLE_SECONDS):
                return await anext(messages, None)
        except TimeoutError:
            await context.abort(StatusCode.DEADLINE_EXCEEDED, f"no message came within {_IDLE_SECONDS} s")
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
            await self._abort(context)
        finally:
            self._waiting.discard(task)
        return None

    async def _abort(self, context: aio.ServicerContext) -> None:
        await context.abort(StatusCode.UNAVAILABLE, "the server ends: call again, and continue after the last answer")
