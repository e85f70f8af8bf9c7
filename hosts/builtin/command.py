"""Archives served by processes of this package: `neuron-lstm serve --server builtin`."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

from ...inference.errors import ArchiveError
from ...inference.private_directory import private_directory
from ...inference.reader import ArchiveReader
from ..archives_by_name import archives_by_name
from ..example_request import curl_command
from ..free_port import check_free
from .followed_archive import FollowedArchive
from .worker_processes import ServerSettings, WorkerProcesses

_PACKAGES = (
    *("uvicorn", "httptools", "uvloop", "websockets"),
    *("starlette", "python_multipart", "prometheus_client", "grpc_health"),
)
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of Prometheus's client for the folder in which processes share their values."""
_SECONDS_BETWEEN_LOOKS = 1.0


def serve_archives(paths: Sequence[Path], settings: ServerSettings, say: Callable[[str], object]) -> None:
    """Serve archives until SIGTERM or Ctrl-C, and then answer all requests that were accepted.

    Raises `ArchiveError`: an archive, an address or a file cannot be used.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ArchiveError(f"{missing[0]} is missing here: pip install 'torchserve-neuron-lstm[server]'")
    found = archives_by_name(paths)
    with ExitStack() as stack:
        address = stack.enter_context(_address(settings))
        os.environ[_METRICS_FOLDER] = str(stack.enter_context(private_directory()))
        archives = [FollowedArchive(name, Path(path)) for name, path in found.items()]
        stack.callback(lambda: [one.close() for one in archives])
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        folders = {one.name: one.folder for one in archives}
        workers = WorkerProcesses(partial(_run_worker, settings, address), settings, folders, say)
        stack.callback(workers.end)
        try:
            workers.check()
            for line in _description(settings, archives):
                say(line)
            _follow(archives, workers, say)
        except KeyboardInterrupt:
            say(f"Not ready from now on; the last requests are answered in {settings.drain_seconds} s.")
            address.close()  # later, no connection waits for a process that accepts none


def _run_worker(settings: ServerSettings, address: socket.socket, parent: Connection) -> None:
    from .worker import run  # what computes is imported in the workers alone

    run(settings, address, parent)


def _follow(archives: Sequence[FollowedArchive], workers: WorkerProcesses, say: Callable[[str], object]) -> None:
    """Serve new versions of the archives when their files change, and all of them at SIGHUP."""
    asked: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: asked.append(number))
    while True:
        workers.wait(_SECONDS_BETWEEN_LOOKS)
        is_asked = bool(asked)
        asked.clear()
        for one in archives:
            if one.has_changed() or is_asked:
                say(one.renew(workers.replace))


def _address(settings: ServerSettings) -> socket.socket:
    """Take the address of HTTP, at which the workers will listen.

    Raises `ArchiveError`: an address or the certificate cannot be used.
    """
    if settings.cert or settings.key:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.cert or "", settings.key or "")
        except OSError as error:
            raise ArchiveError(
                f"--cert {settings.cert} and --key {settings.key} are no pair for TLS: {error}"
            ) from error
    for port in filter(None, (settings.port, settings.grpc_port)):
        check_free(settings.host, port)
    address = socket.socket()
    address.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    address.bind((settings.host, settings.port))
    return address


def read_token(file: Path) -> str:
    """Read the word that requests must have. Raises `ArchiveError`: there is none."""
    try:
        (token,) = file.read_text("ascii").split()
    except (OSError, ValueError) as error:
        raise ArchiveError(f"--token-file: expected a file with one word of ASCII: {file}: {error}") from error
    return token


def _description(settings: ServerSettings, archives: Sequence[FollowedArchive]) -> Iterator[str]:
    host = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host  # noqa: S104 - compared, not bound
    url = f"http{'s' * bool(settings.cert)}://{host}:{settings.port}"
    names = ", ".join(one.name for one in archives)
    yield f"Serving {names} at {url}, metrics at {url}/metrics, workers: {settings.workers}."
    if settings.grpc_port is not None:
        yield f"gRPC at {host}:{settings.grpc_port}."
    header = '-H "Authorization: Bearer $TOKEN" ' if settings.token else ""
    for one in archives:
        command = curl_command(url, one.name, ArchiveReader(Path(one.folder)).manifest())
        yield f"  {command.replace('curl -s ', f'curl -s {header}', 1)}"
    yield "Ctrl-C ends it."
