"""Archives served on Ray from the command line: `neuron-lstm serve-ray`."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

try:
    import ray
    from ray import serve
except ImportError as error:
    raise ImportError(f"Ray Serve is missing here ({error}): pip install 'torchserve-neuron-lstm[ray]'") from error

from ...inference.errors import ArchiveError
from ...inference.reader import ArchiveReader
from ..archives_by_name import archives_by_name
from ..example_request import curl_command
from ..free_port import check_free
from ..ray import app

APPLICATION = "neuron-lstm"
"""The name of the application on Ray."""
_LEAST_MESSAGE_BYTES = 16 << 20
_SERVICER = "torchserve_neuron_lstm.hosts.grpc.methods.add_inference_service"
_CONNECT_S = 10
_PROXY_READY_S = 30
"""Time that the proxy of a Ray started here has to be ready. Ray's own 5 s kill it on a busy machine."""
_LOGGERS = ("ray", "ray.serve")


@dataclass(frozen=True)
class RaySettings:
    """Archives, and how Ray serves them."""

    archives: Sequence[Path]
    """At least one; each model has the archive's own name."""
    threads: int = 1
    """Threads of each program call, which are the CPUs of a replica."""
    replicas: int = 1
    """Replicas at the start, and the least."""
    max_replicas: int | None = None
    """The most replicas; None: their number does not change."""
    host: str = "127.0.0.1"
    """The address on which each node listens."""
    port: int = 8000
    grpc_port: int | None = None
    """The port of gRPC; None: no gRPC."""

    @property
    def url(self) -> str:
        """The address of the server for clients on this machine."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host  # noqa: S104 - compared, not bound
        return f"http://{host}:{self.port}"


def serve_archives(settings: RaySettings, say: Callable[[str], object]) -> None:
    """Serve archives on the Ray that runs, or on one started here, until interrupted.

    In the end the application is deleted, and Serve and Ray are stopped if they were started here.

    Raises `ArchiveError`: an archive is missing or damaged, two have one name, or Ray cannot serve them; nothing was
    left running then.
    """
    paths = archives_by_name(settings.archives)
    application = app(
        {
            "archives": paths,
            "threads": settings.threads,
            "replicas": settings.replicas,
            "max_replicas": settings.max_replicas,
        }
    )
    with ExitStack() as stack:
        largest = max(ArchiveReader(Path(path)).manifest().limits.body_bytes for path in paths.values())
        stack.enter_context(_connected(settings, max(_LEAST_MESSAGE_BYTES, 2 * largest), say))
        stack.enter_context(_serve_started(settings))
        say(f"Loading {', '.join(paths)}.")
        stack.enter_context(_deployed(application))
        for line in _description(settings, paths):
            say(line)
        threading.Event().wait()


def _description(settings: RaySettings, paths: dict[str, str]) -> Iterator[str]:
    most = "" if settings.max_replicas is None else f" to {settings.max_replicas}"
    count = f"{settings.replicas}{most}"
    yield f"Serving {', '.join(paths)} at {settings.url}, replicas: {count}, threads of each: {settings.threads}."
    if settings.grpc_port is not None:
        yield f"gRPC at port {settings.grpc_port}, on all interfaces."
    for name, path in paths.items():
        yield f"  {curl_command(settings.url, name, ArchiveReader(Path(path)).manifest())}"
    yield "Ctrl-C ends it."


@contextmanager
def _connected(settings: RaySettings, most_bytes: int, say: Callable[[str], object]) -> Iterator[None]:
    """Connect to the Ray that runs, or start one, whose gRPC takes so many bytes, and stop it in the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", str(_PROXY_READY_S))
    os.environ.setdefault("RAY_SERVE_GRPC_MAX_MESSAGE_SIZE", str(most_bytes))  # its own limit is 2 GiB
    _check_address(os.environ.get("RAY_ADDRESS", ""))
    at_termination = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ArchiveError(
            f"{error}: start it, or run `ray stop` if it has crashed; RAY_AUTH_MODE=token if it asks for a token. "
            f"RAY_ADDRESS=local starts one here"
        ) from error
    except Exception as error:  # its type says no more: Ray raises Exception itself
        raise ArchiveError(f"Ray does not start: {error}") from error
    try:
        # Ray ends the process at SIGTERM in its own way, with another exit code.
        signal.signal(signal.SIGTERM, at_termination)
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        if _started_here():
            _check_cpus(settings)
            say("Started Ray on this machine.")
        else:
            say(f"Connected to the Ray at {ray.get_runtime_context().gcs_address}.")
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address at which nothing listens: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError, ValueError) as error:  # the others: no port or host can be like this
        raise ArchiveError(
            f"there is no Ray at {address} (RAY_ADDRESS): {error}; start it, or RAY_ADDRESS=local starts one here"
        ) from error


def _started_here() -> bool:
    return bool(ray._private.worker.global_worker.node.is_head())  # noqa: SLF001 - Ray has no public name for it


def _check_cpus(settings: RaySettings) -> None:
    """Refuse replicas for which this machine has no CPUs: they would wait forever."""
    needed, present = settings.replicas * settings.threads, int(ray.cluster_resources().get("CPU", 0))
    if needed > present:
        raise ArchiveError(
            f"{settings.replicas} replicas with {settings.threads} threads need {needed} CPUs, this machine has "
            f"{present}: give fewer --replicas or --threads, or set RAY_ADDRESS to a larger Ray"
        )


@contextmanager
def _serve_started(settings: RaySettings) -> Iterator[None]:
    """Start Serve, and shut it down in the end if it serves nothing else. One that runs is used as it is."""
    if serve.status().proxies:
        _check_running(settings)
        yield
        return
    if _started_here():
        check_free(settings.host, settings.port)
        if settings.grpc_port is not None:
            check_free("0.0.0.0", settings.grpc_port)  # noqa: S104 - Ray's gRPC listens there
    grpc = {"port": settings.grpc_port, "grpc_servicer_functions": [_SERVICER]} if settings.grpc_port else None
    try:
        try:
            serve.start(http_options={"host": settings.host, "port": settings.port}, grpc_options=grpc)
        except (ray.exceptions.RayActorError, TimeoutError) as error:
            raise ArchiveError(
                f"Ray Serve does not start: {error}; if the machine is busy, start Ray with a larger "
                f"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S, the seconds in which a proxy must be ready"
            ) from error
        yield
    finally:
        if not serve.status().applications:
            serve.shutdown()


def _check_running(settings: RaySettings) -> None:
    """Refuse options that differ from those of the Serve that runs: it keeps its own."""
    found = serve.context._get_global_client().get_serve_details()  # noqa: SLF001 - Ray has no public name for it
    present = {name: found["http_options"][name] for name in ("host", "port")}
    if present != {"host": settings.host, "port": settings.port}:
        raise ArchiveError(
            f"Ray Serve already runs on this Ray: give its --host {present['host']} --port {present['port']}, or end "
            f"it by `serve shutdown`"
        )
    grpc = found["grpc_options"]
    if settings.grpc_port and (grpc["port"] != settings.grpc_port or _SERVICER not in grpc["grpc_servicer_functions"]):
        raise ArchiveError(
            f"Ray Serve already runs on this Ray, without this project's gRPC service at port {settings.grpc_port}: "
            f"leave out --grpc-port, or end it by `serve shutdown`"
        )


@contextmanager
def _deployed(application: serve.Application) -> Iterator[None]:
    """Deploy the application and wait until its replicas are ready; delete it in the end."""
    if APPLICATION in serve.status().applications:
        raise ArchiveError(f"an application {APPLICATION} already runs on this Ray: end its command first")
    try:
        try:
            serve.run(application, name=APPLICATION, route_prefix="/")
        except (serve.exceptions.RayServeException, RuntimeError) as error:
            found = serve.status().applications.get(APPLICATION)
            reasons = "" if found is None else " ".join(error_of(one.message) for one in found.deployments.values())
            raise ArchiveError(f"Ray cannot serve the archives: {error} {reasons}") from error
        yield
    finally:
        serve.delete(APPLICATION)


def error_of(message: str) -> str:
    r"""Return the last error of the tracebacks in a message; the whole message if it has none.

    >>> error_of("The replica did not start.\n  File ...\nerrors.ArchiveError: a.mar: model.pt was changed\n")
    'a.mar: model.pt was changed'
    """
    found = re.findall(r"^[\w.]*(?:Error|Exception): (.+)$", message, re.MULTILINE)
    return str(found[-1]) if found else message
