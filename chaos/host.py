"""A TorchServe that can be killed as in a crash, and started again on the same ports."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from torchserve_process import TorchServe, command, host_environment, properties, stop, wait_until_ready

from .archive import NAME

_METRICS = Path(__file__).parents[1] / "config" / "metrics.yaml"
_SETTINGS = {"job_queue_size": "2000", "metrics_config": str(_METRICS), "metrics_mode": "log"}
_READY_SECONDS = 120
_REPEATED = re.compile(r"neuron_lstm_repeated_total\.[a-z]+:(\d+)\.0\|")


class Host:
    """One server process and its workers, in folders that no other server uses. The caller closes it."""

    def __init__(self, store: Path, environment: Mapping[str, str]) -> None:
        self._store = store
        self._environment = environment
        self._ports = steady_ports(5)
        self._process: subprocess.Popen[bytes] | None = None
        self._homes: list[Path] = []

    @property
    def port(self) -> int:
        """The port of predictions."""
        return self._ports[0]

    @property
    def alive(self) -> bool:
        """Whether the server was started and not killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start the server and wait until a worker is ready.

        Raises:
            DidNotStart: no worker became ready.
        """
        # the folder's path must stay short: it contains the workers' sockets
        home = Path(tempfile.mkdtemp(prefix="ts-"))
        self._homes.append(home)
        (home / "config.properties").write_text(properties(self._ports, _SETTINGS))
        with (home / "torchserve.log").open("wb") as log:
            self._process = subprocess.Popen(
                command(Path(sys.executable), home, self._store, {NAME: f"{NAME}.mar"}),
                cwd=home,
                env={**os.environ, **host_environment(home), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until_ready(self._server, self._process, {NAME: f"{NAME}.mar"}, _READY_SECONDS)

    def kill(self) -> None:
        """Kill the server and its workers at once, as in a failure of the machine."""
        if self._process is not None:
            process, self._process = self._process, None
            stop(process)

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a random worker, in any state. Returns whether there was one."""
        process = self._process
        if process is None:
            return False
        try:
            pids = [pid for pid in self._server.worker_pids(NAME) if _is_of(pid, process.pid)]
        except (urllib.error.URLError, ConnectionError, TimeoutError, KeyError):
            return False
        if not pids:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(pids), signal.SIGKILL)
            return True
        return False

    def replayed(self) -> int:
        """The number of chunks that were answered from the stored answer, as reported by all its workers."""
        texts = (log.read_text(errors="replace") for home in self._homes for log in home.rglob("model_metrics.log"))
        return sum(int(number) for text in texts for number in _REPEATED.findall(text))

    def close(self) -> None:
        """Stop the server and remove the files that it has written."""
        self.kill()
        for home in self._homes:
            shutil.rmtree(home, ignore_errors=True)

    @property
    def _server(self) -> TorchServe:
        return TorchServe(self._ports[0], self._ports[1], self._homes[-1] / "torchserve.log")


def _is_of(pid: int, group: int) -> bool:
    """Whether the process was started by this server: the reported id may be of a process that has ended."""
    try:
        return pid > 0 and os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def steady_ports(count: int) -> list[int]:
    """Free ports that no client gets for its own end of a connection while the server is down."""
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(range(20_000, 32_000), 1000):
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"this machine has no {count} free ports between 20000 and 32000")
