"""An archive that answers the requests of an event loop, and one that this process could not load."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.manifest import Manifest
from ..handlers.description import readiness
from ..handlers.formats.json_text import to_json
from ..handlers.formats.raw_request import RawRequest
from ..handlers.formats.request import ModelIdentity
from ..handlers.open_service import Host, Report, open_service
from ..handlers.responses import DEFAULT_MAX_RESPONSE_BYTES, RawResponse, RequestError
from ..handlers.service import DEFAULT_RESPONSE_TIMEOUT_MS, Service
from ..handlers.streaming.store_sessions import StoreSessions
from ..inference.errors import HOST_ERRORS, ArchiveError
from ..inference.isolated_modules import IsolatedModules
from ..inference.reader import ArchiveReader
from .batch_queue import BatchQueue, QueueFullError

if TYPE_CHECKING:
    from .spans import RequestSpans

_log = logging.getLogger(__name__)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True)
class ArchiveSettings:
    """An archive, and how a server serves it."""

    archive: str
    """Path of the .mar, the .tar.gz or the folder."""
    name: str
    """The name under which the model is served."""
    threads: int | None
    """Threads of each program call; None: the archive's, or this process's share of the cores."""
    most_waiting: int | None
    """Requests that may wait while a batch is computed; None: the server limits them."""
    workers: int = 1
    """Processes that serve the archive with the cores of this one."""


class ServedArchive:
    """A loaded archive behind a queue; `close` it."""

    def __init__(self, settings: ArchiveSettings, report: Report) -> None:
        """Check the archive's files, and load and warm up its programs.

        Raises `ArchiveError`: there is no such archive, it is not as it was packaged, or this host cannot run it.
        """
        self.name = settings.name
        self._files = ExitStack()
        try:
            directory = self._files.enter_context(ArchiveReader(Path(settings.archive)).checked()).resolve()
            # Not of the archive, in whose place another one may be by now.
            self.version = ArchiveReader(directory).model_version()
            self._modules = IsolatedModules(directory)
            self._service = open_service(
                Host(
                    directory,
                    ModelIdentity(settings.name, self.version),
                    DEFAULT_MAX_RESPONSE_BYTES,
                    DEFAULT_RESPONSE_TIMEOUT_MS,
                    report,
                    os.environ,
                    workers=settings.workers,
                    threads=settings.threads,
                    user_code=self._modules.imported,
                )
            )
            if isinstance(self._service.sessions, StoreSessions):
                self._files.callback(self._service.sessions.store.close)
        except BaseException as error:
            self._files.close()
            if isinstance(error, HOST_ERRORS):
                raise ArchiveError(f"{settings.archive}: {str(error) or 'out of memory'}") from error
            raise
        self._spans = _spans_of(self._service, {"neuron_lstm.model": self.name, "neuron_lstm.version": self.version})
        self._queue = BatchQueue(self._handle, self.manifest.grid.batches[-1], settings.most_waiting)
        self._try: asyncio.Future[dict[str, object]] | None = None

    @property
    def manifest(self) -> Manifest:
        """The archive's manifest."""
        return self._service.model.manifest

    def _handle(self, requests: Sequence[RawRequest]) -> Sequence[RawResponse]:
        with self._user_code():
            return (self._spans or self._service).handle(requests)

    def _readiness(self) -> dict[str, object]:
        with self._user_code():
            return readiness(self._service.model, self._service.sessions)

    def _user_code(self) -> AbstractContextManager[None]:
        """Let the archive's Python files import others late: a replica may have other archives."""
        with_code = self.manifest.codec, self.manifest.model, self.manifest.short, self.manifest.shadow
        return self._modules.imported() if any(one is not None for one in with_code) else nullcontext()

    async def respond(self, request: RawRequest) -> RawResponse:
        """Return the response to one request. Raises `RequestError`: 503, too many requests wait."""
        try:
            if self._spans is None:
                return await self._queue.respond(request)
            return await self._spans.respond(request, self._queue.respond)
        except QueueFullError:
            raise self._full() from None

    def check_queue(self) -> None:
        """Refuse a request whose body is not read yet. Raises `RequestError`: 503, too many requests wait."""
        if self._queue.is_full():
            raise self._full()

    def _full(self) -> RequestError:
        message = f'Model "{self.name}" has as many requests waiting as it may have; send the request again'
        return RequestError("ServiceUnavailableException", message, status=503)

    async def readiness(self) -> dict[str, object]:
        """Try the engine and the session store, and return what works.

        Callers that ask at the same time share one try: a probe costs a call of the program.
        """
        if self._try is None or self._try.done():
            self._try = asyncio.ensure_future(self._queue.call(self._readiness))
        return await asyncio.shield(self._try)

    async def close(self) -> None:
        """Answer the waiting requests, and release the programs."""
        await self._queue.close()
        self.release()

    def release(self) -> None:
        """Close the session store and delete the unpacked files; to do so again is harmless."""
        self._files.close()


def _spans_of(service: Service, facts: Mapping[str, str]) -> RequestSpans | None:
    """Return the spans of a service's requests; None: nobody asks for them, or their packages are missing."""
    endpoint = next(filter(os.environ.get, _ENDPOINTS), None)
    if endpoint is None and "opentelemetry.sdk.trace" not in sys.modules:
        return None
    try:
        from .spans import request_spans

        return request_spans(service, facts, send=endpoint is not None)
    except ImportError as error:
        _log.warning("%s: no spans are sent (%s): pip install 'torchserve-neuron-lstm[otel]'", endpoint, error)
        return None


class UnloadedArchive:
    """An archive that was not loaded, for `reason`. Its metadata are there; its model is not ready."""

    def __init__(self, settings: ArchiveSettings, reason: str) -> None:
        """Read the archive's manifest. Raises `ArchiveError`: there is no such archive, or it is damaged."""
        reader = ArchiveReader(Path(settings.archive))
        self.name = settings.name
        self.version = reader.model_version()
        self.manifest = reader.manifest()
        # Clients read the reason: folders are the host's.
        known = reason.replace(f"{Path(settings.archive).parent}/", "")
        self._reason = re.sub(r"(?<![\w:/])/([^\s/]+/)+", "", known)

    def check_queue(self) -> None:
        """Do nothing: no request waits."""

    async def respond(self, request: RawRequest) -> RawResponse:
        """Refuse the request with 503: another replica may have the model."""
        message = f"model {self.name} is not ready: {self._reason}"
        return RawResponse(503, to_json({"code": 503, "type": "ModelNotReady", "message": message, "error": message}))

    async def readiness(self) -> dict[str, object]:
        """Return that the model is not ready, and the reason."""
        return {"ready": False, "reason": self._reason}

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


HostedArchive = ServedArchive | UnloadedArchive
"""A model by its name and version, loaded or not."""
