"""One worker process of the built-in server: it loads archives, and answers requests until its parent ends it."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from ...inference.errors import ArchiveError
from ..prometheus_metrics import PrometheusMetrics
from ..served_archive import ArchiveSettings, ServedArchive
from .http_service import MOST_CONNECTIONS, Application, HttpServer
from .worker_processes import ANSWER_SECONDS, ServerSettings

_MOST_WAITING = 1000
"""Requests that may wait for a model, as with this project's settings of TorchServe."""
_STARTING_SECONDS = 0.01


class _Worker:
    """The archives of this process, and its servers once the first ones are there."""

    def __init__(self, settings: ServerSettings, address: socket.socket) -> None:
        self._settings = settings
        self._address = address
        self._archives: dict[str, ServedArchive] = {}
        self._application = Application(self._archives, settings.token, settings.origins)
        self._http = HttpServer(self._application, settings)
        self._grpc: Any = None
        self._serving: asyncio.Task[None] | None = None

    async def serve(self, folders: Mapping[str, str]) -> str:
        """Load archives, and then answer with them instead of the former ones of these names.

        Returns the reason why this worker cannot, "" if it does.
        """
        loaded: dict[str, ServedArchive] = {}
        try:
            for name, folder in folders.items():
                loaded[name] = await asyncio.to_thread(_load, name, folder, self._settings.workers)
            former = {name: self._archives[name] for name in loaded if name in self._archives}
            self._archives.update(loaded)
            self._http.config.ws_max_size = max(one.manifest.limits.body_bytes for one in self._archives.values())
            if self._serving is None:
                await self._listen()
        except (ArchiveError, OSError, RuntimeError) as error:
            await _close(loaded)
            return str(error)
        await _close(former)
        return ""

    async def _listen(self) -> None:
        if self._settings.grpc_port is not None:
            from .grpc_service import GrpcService  # gRPC takes a tenth of a second, and memory

            self._grpc = GrpcService(self._settings, self._archives)
            await self._grpc.start()
        self._serving = asyncio.create_task(self._http.serve([self._address]))
        while not self._http.started:
            done, _ = await asyncio.wait([self._serving], timeout=_STARTING_SECONDS)
            for one in done:
                one.result()

    async def end(self) -> None:
        """Say that this process is not ready, and later answer the last requests and release everything."""
        self._application.is_draining = True
        if self._grpc is not None:
            await self._grpc.drain()
        if self._serving is not None:
            await asyncio.sleep(self._settings.drain_seconds)
            self._http.should_exit = True
            if self._grpc is not None:
                await self._grpc.stop(ANSWER_SECONDS)
            await self._serving
        await _close(self._archives)


def _load(name: str, folder: str, workers: int) -> ServedArchive:
    metrics = PrometheusMetrics(name)
    try:
        served = ServedArchive(ArchiveSettings(folder, name, None, _MOST_WAITING, workers), metrics.report)
    except ArchiveError as error:  # the folder is a copy of the archive
        raise ArchiveError(f"{name}: {str(error).removeprefix(f'{folder}: ')}") from error
    metrics.version = served.version
    return served


async def _close(archives: Mapping[str, ServedArchive]) -> None:
    for one in archives.values():
        await one.close()


async def _obey(parent: Connection, settings: ServerSettings, address: socket.socket) -> None:
    worker = _Worker(settings, address)
    with suppress(EOFError, OSError):
        while True:
            parent.send(await worker.serve(await asyncio.to_thread(parent.recv)))
    await worker.end()


def run(settings: ServerSettings, address: socket.socket, parent: Connection) -> None:
    """Serve the archives that the parent tells, until its connection ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal or systemd sends them to all processes; the parent decides
    logging.basicConfig(format="%(asctime)s %(levelname)s worker %(process)d: %(message)s")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4 * MOST_CONNECTIONS), most))
    uvloop.run(_obey(parent, settings, address))
