"""Archives served by processes of this package: `neuron-lstm serve --server builtin`."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from ...inference.errors import ArchiveError
from ...inference.private_directory import private_directory
from ...inference.reader import ArchiveReader
from ..archives_by_name import archives_by_name
from ..example_request import curl_command
from ..free_port import check_free
from .archive_copy import ArchiveChanges, ArchiveCopy
from .worker_processes import ServerSettings, WorkerProcesses

_PACKAGES = ("uvicorn", "httptools", "uvloop", "starlette", "python_multipart", "prometheus_client", "grpc_health")
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of Prometheus's client for the folder in which processes share their values."""
_SECONDS_BETWEEN_LOOKS = 1.0


class _Served:
    """An archive of the command line: its copy that is served, and its later changes."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.changes = ArchiveChanges(path)
        self.copy = ArchiveCopy(path, name)

    def renew(self, workers: WorkerProcesses) -> str:
        """Serve the archive as it is now. Returns a line for the log."""
        try:
            copy = ArchiveCopy(self.path, self.name)
        except ArchiveError as error:
            return f"{self.name} stays as it is: {error}"
        if reason := workers.replace({self.name: copy.folder}):
            copy.close()
            return f"{self.name} stays as it is: {self.path} cannot be served: {reason}"
        self.copy.close()
        self.copy = copy
        return f"{self.name} is replaced: version {copy.version}."


def serve_archives(
    archives: Sequence[Path], settings: ServerSettings, drain_seconds: int, say: Callable[[str], object]
) -> None:
    """Serve archives until SIGTERM or Ctrl-C, and then answer all requests that were accepted.

    For `drain_seconds` after the signal the server says that it is not ready; a second signal ends this time.

    Raises `ArchiveError`: an archive, an address or a file cannot be used.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ArchiveError(f"{missing[0]} is missing here: pip install 'torchserve-neuron-lstm[server]'")
    paths = archives_by_name(archives)
    with ExitStack() as stack:
        listener = stack.enter_context(_listener(settings))
        os.environ[_METRICS_FOLDER] = str(stack.enter_context(private_directory()))
        served = [_Served(name, Path(path)) for name, path in paths.items()]
        stack.callback(lambda: [one.copy.close() for one in served])
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        workers = WorkerProcesses(settings, listener, {one.name: one.copy.folder for one in served}, say)
        stack.callback(workers.end)
        try:
            workers.check()
            for line in _description(settings, served):
                say(line)
            _follow(served, workers, say)
        except KeyboardInterrupt:
            workers.drain()
            say("Ending: the requests that are here are answered.")
            with suppress(KeyboardInterrupt):
                time.sleep(drain_seconds)


def _follow(served: Sequence[_Served], workers: WorkerProcesses, say: Callable[[str], object]) -> None:
    """Serve new versions of the archives when their files change, and all of them at SIGHUP."""
    asked: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: asked.append(number))
    while True:
        workers.wait(_SECONDS_BETWEEN_LOOKS)
        is_asked = bool(asked)
        asked.clear()
        for one in served:
            if one.changes.is_new() or is_asked:
                say(one.renew(workers))


@contextmanager
def _listener(settings: ServerSettings) -> Iterator[socket.socket]:
    """Take the address of HTTP; the workers listen. Raises `ArchiveError`: something cannot be used."""
    _check_certificate(settings)
    for port in (settings.port, settings.grpc_port):
        if port is not None:
            check_free(settings.host, port)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        yield listener


def _check_certificate(settings: ServerSettings) -> None:
    if (settings.cert is None) != (settings.key is None):
        raise ArchiveError("TLS needs both --cert and --key")
    if settings.cert is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.cert, settings.key)
        except OSError as error:
            raise ArchiveError(f"--cert {settings.cert}, --key {settings.key}: {error}") from error


def read_token(file: Path) -> str:
    """Read the word that requests must have. Raises `ArchiveError`: there is none."""
    try:
        token = file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ArchiveError(f"--token-file: {file} cannot be read: {error}") from error
    if not token.isprintable() or " " in token or not token:
        raise ArchiveError(f"--token-file: {file} must have one word of printable ASCII")
    return token


def _description(settings: ServerSettings, served: Sequence[_Served]) -> Iterator[str]:
    host = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host  # noqa: S104 - compared, not bound
    url = f"http{'s' * (settings.cert is not None)}://{host}:{settings.port}"
    names = ", ".join(one.name for one in served)
    yield f"Serving {names} at {url}, metrics at {url}/metrics, workers: {settings.workers}."
    if settings.grpc_port is not None:
        yield f"gRPC at {host}:{settings.grpc_port}."
    for one in served:
        command = curl_command(url, one.name, ArchiveReader(Path(one.copy.folder)).manifest())
        header = '-H "Authorization: Bearer $TOKEN" ' if settings.token else ""
        yield f"  {command.replace('curl -s ', f'curl -s {header}', 1)}"
    yield "Ctrl-C ends it."
