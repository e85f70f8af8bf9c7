"""KServe adapter: the process of an InferenceService's container.

    python -m torchserve_neuron_lstm.hosts.kserve --archive tagger.mar

KServe's server runs the process: arguments, logs, metrics and shutdown. The routes of the protocols stand
before its own, because those parse requests, and answer errors, each in their own way.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path

try:
    from kserve.model import BaseKServeModel
    from kserve.model_server import ModelServer, app
    from kserve.model_server import args as given_to_kserve
    from kserve.model_server import parser as parser_of_kserve
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as error:
    raise ImportError(f"KServe is missing here ({error}): pip install 'torchserve-neuron-lstm[kserve]'") from error

from ..inference.errors import ArchiveError
from ..inference.reader import ArchiveReader
from .kserve_grpc import GrpcServer
from .prometheus_metrics import PrometheusMetrics
from .rest import respond
from .served_archive import ArchiveSettings, HostedArchive, ServedArchive, UnloadedArchive
from .shared_sessions import check_shared_sessions

_log = logging.getLogger(__name__)
_BATCHES_WAITING = 20
"""Largest batches that may wait, beside the one that is computed: no proxy before the container has a queue."""
_PATHS = re.compile(r"(?s)(?!/(metrics|v[12]/models)?\Z)/(?P<path>.*)")
"""All paths but four of KServe: its others load models for any client, or read bodies of any size."""


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line: ours beside KServe's."""
    parser = argparse.ArgumentParser("python -m torchserve_neuron_lstm.hosts.kserve", parents=[parser_of_kserve])
    parser.add_argument("--archive", required=True, help="the .mar, .tar.gz or folder of the model")
    parser.add_argument("--name", dest="model_name", help="the name of the model in URLs (default: the archive's own)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each program call: the container's CPUs")
    parser.set_defaults(model_name=None)
    return parser


class ArchiveModel(BaseKServeModel):  # type: ignore[misc]  # KServe has no types
    """An archive in KServe's list of models."""

    def __init__(self, archive: HostedArchive) -> None:
        super().__init__(archive.name)
        self._archive = archive
        self.ready = True  # KServe starts with a ready model only; this one reports its own health

    async def healthy(self) -> bool:
        """Try the engine and the session store."""
        return bool((await self._archive.readiness())["ready"])


class ArchiveServer(ModelServer):  # type: ignore[misc]  # KServe has no types
    """KServe's server with the protocols of archives, by name."""

    def __init__(self, archives: Mapping[str, HostedArchive]) -> None:
        super().__init__(enable_grpc=False)  # KServe's own one
        self._archives = archives
        self._grpc = GrpcServer(self.grpc_port, archives, given_to_kserve.grpc_max_receive_message_length)

    def serve(self) -> None:
        """Answer requests until a signal ends the process; the requests received by then are answered."""
        add_routes(self._archives)
        if given_to_kserve.enable_grpc:
            self.servers.append(self._grpc.serve())
        self.start([ArchiveModel(archive) for archive in self._archives.values()])

    def stop(self, sig: int) -> None:
        """Stop; KServe calls this once its REST server has answered all requests."""
        super().stop(sig)
        self._ending = asyncio.create_task(self._grpc.stop(self.grace_period))


def add_routes(archives: Mapping[str, HostedArchive]) -> None:
    """Put the REST API of archives before the routes that KServe adds when it starts, for every method."""

    async def answer(request: Request) -> Response:
        return await respond(request, archives)

    route = Route("/{path:path}", answer)
    route.path_regex, route.methods = _PATHS, None  # the path that Starlette knows ends at a line break
    app.router.routes.append(route)


def load(path: str, name: str | None, threads: int) -> HostedArchive:
    """Load an archive. One that this host cannot run is returned as that, and the log has the reason.

    Raises `ArchiveError`: there is no such archive, it is damaged, or its sessions would be on the disk of one
    container.
    """
    reader = ArchiveReader(Path(path))
    name = name or reader.model_name()
    manifest = reader.manifest()
    check_shared_sessions(name, manifest)
    settings = ArchiveSettings(path, name, threads, _BATCHES_WAITING * manifest.grid.batches[-1])
    metrics = PrometheusMetrics(name)
    try:
        served = ServedArchive(settings, metrics.report)
    except ArchiveError as error:
        _log.error("model %s is not ready: %s", name, error)
        return UnloadedArchive(settings, str(error))
    metrics.version = served.version
    return served


def main() -> None:
    """Serve the archive that the command line names."""
    parser = arguments()
    given = parser.parse_args()
    if given.workers != 1:
        parser.error(f"--workers: expected 1, got {given.workers}: one process computes; run more containers instead")
    if given.threads < 1:
        parser.error(f"--threads: expected 1 or more, got {given.threads}")
    try:
        archive = load(given.archive, given.model_name, given.threads)
        try:
            ArchiveServer({archive.name: archive}).serve()
        finally:
            asyncio.run(archive.close())
    except ArchiveError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
