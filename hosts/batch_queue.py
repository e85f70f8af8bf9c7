"""Queue of requests before one thread that computes.

The requests that arrived while the last batch was computed are the next batch. There is no timer: a request that finds
the thread idle is computed at once, and under load the batches grow by themselves, as in a busy TorchServe worker.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from ..handlers.formats.raw_request import RawRequest
from ..handlers.responses import RawResponse

_T = TypeVar("_T")
HandleBatch = Callable[[Sequence[RawRequest]], Sequence[RawResponse]]
"""A function that returns one response for each request, in order."""


class QueueFullError(Exception):
    """The queue is full: as many requests wait as are allowed."""


class _Waiting(NamedTuple):
    request: RawRequest
    response: asyncio.Future[RawResponse]
    arrived: float
    """The seconds of a clock."""


class BatchQueue:
    """A queue for the requests of one event loop; `close` it."""

    def __init__(self, handle: HandleBatch, most_in_batch: int, most_waiting: int | None) -> None:
        """`handle` is called by one thread.

        `most_waiting` does not count the batch that is computed; with None the caller limits how many requests wait.
        """
        self._handle = handle
        self._most_in_batch = most_in_batch
        self._most_waiting = most_waiting
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="neuron-lstm")
        self._work: asyncio.Task[None] | None = None

    async def respond(self, request: RawRequest) -> RawResponse:
        """Return the response to one request.

        If the caller is cancelled before its batch begins, nothing is computed.

        Raises `QueueFullError`: too many requests wait.
        """
        if self.is_full():
            raise QueueFullError
        waiting = _Waiting(request, asyncio.get_running_loop().create_future(), time.perf_counter())
        self._waiting.append(waiting)
        if self._work is None:
            self._work = asyncio.create_task(self._compute())
        return await waiting.response

    def is_full(self) -> bool:
        """Whether as many requests wait as are allowed."""
        if self._most_waiting is None or len(self._waiting) < self._most_waiting:
            return False
        self._waiting = deque(one for one in self._waiting if not one.response.done())  # without cancelled callers
        return len(self._waiting) >= self._most_waiting

    async def call(self, function: Callable[[], _T]) -> _T:
        """Call a function on the thread, after the batch that it computes now."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def close(self) -> None:
        """Compute the waiting requests, and end the thread."""
        while self._work is not None:
            await asyncio.wait([self._work])
        await asyncio.to_thread(self._thread.shutdown)  # after what it calls now, for which others do not wait

    async def _compute(self) -> None:
        try:
            while batch := self._next_batch():
                await self._answer(batch)
        finally:
            self._work = None

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < self._most_in_batch:
            waiting = self._waiting.popleft()
            if not waiting.response.done():  # its caller has not gone away
                batch.append(waiting)
        return batch

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        now = time.perf_counter()
        requests = [one.request._replace(waited_ms=(now - one.arrived) * 1000) for one in batch]
        try:
            answered = [*zip(batch, await self.call(lambda: self._handle(requests)), strict=True)]
        except Exception as error:  # noqa: BLE001 - it goes to each caller
            _fail(batch, error)
            return
        except BaseException as error:
            # The task ends, so the requests that wait are told too: they would wait for another request.
            failure = RuntimeError(f"the batch was given up: {type(error).__name__}")
            failure.__cause__ = error
            _fail([*batch, *self._waiting], failure)
            self._waiting.clear()
            raise
        for waiting, response in answered:
            if not waiting.response.done():
                waiting.response.set_result(response)


def _fail(batch: Sequence[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.response.done():
            waiting.response.set_exception(error)
