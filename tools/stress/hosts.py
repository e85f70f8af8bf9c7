"""The archives under stress, and a TorchServe that can be killed as in a crash and started again on the same ports."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
from torchserve_process import TorchServe, command, host_environment, properties, stop, wait_until_ready

from ..bench.harness import package
from .bad_requests import LONGEST, MOST_BYTES, MOST_SEQUENCES, MOST_TIMESTEPS, STREAM, TAGGER
from .checks import LONGEST_CHUNK
from .model import Tagger

_METRICS = Path(__file__).parents[2] / "config" / "metrics.yaml"
_CONFIG = """\
minWorkers: {workers}
maxWorkers: {workers}
batchSize: 16
maxBatchDelay: 2
responseTimeout: 60
neuron_lstm:
  inputs:
    ids: {{dtype: int64, shape: [batch, time]}}
  lengths: lengths
  outputs: [tags, topic]
  backend: {backend}
"""
_LENGTHS = {TAGGER: f"[16, {LONGEST}]", STREAM: f"[{LONGEST_CHUNK}]"}
_LIMITS = f"  limits: {{sequences: {MOST_SEQUENCES}, timesteps: {MOST_TIMESTEPS}, body_bytes: {MOST_BYTES}}}\n"
# Warnings and what workers print: a line for every request would fill the disk.
_LOG4J = """\
<Configuration>
  <Appenders>
    <Console name="console" target="SYSTEM_OUT"><PatternLayout pattern="%d{ISO8601} [%-5p] %t %c - %m%n"/></Console>
  </Appenders>
  <Loggers>
    <Root level="warn"><AppenderRef ref="console"/></Root>
    <Logger name="MODEL_LOG" level="info"/>
  </Loggers>
</Configuration>
"""


def make_model() -> Tagger:
    """Return the model with weights that are the same in every run."""
    torch.manual_seed(0)
    return Tagger().eval()


def make_archive(model: Tagger, store: Path, name: str, workers: int, backend: str, streaming: str = "") -> Path:
    """Write `NAME.mar` to the folder `store`, for sessions if there is a block `streaming`; returns its path."""
    shutil.copy(Path(__file__).with_name("model.py"), store)
    torch.save(model.state_dict(), store / "weights.pt")
    buckets = f"  buckets: {{batch: [1, 16], length: {_LENGTHS[name]}}}\n"
    block = f"  streaming: {streaming}\n" if streaming else _LIMITS
    (store / f"{name}.yaml").write_text(_CONFIG.format(workers=workers, backend=backend) + buckets + block)
    package(store, name, handler="neuron_lstm")
    return store / f"{name}.mar"


class Host:
    """A server process and its workers, in folders that no other server uses. The caller closes it."""

    def __init__(self, store: Path, names: Sequence[str], environment: Mapping[str, str]) -> None:
        self._store, self._environment = store, environment
        self._models = {name: f"{name}.mar" for name in names}
        self._ports = steady_ports(5)
        self._process: subprocess.Popen[bytes] | None = None
        self._homes: list[Path] = []
        self.port = self._ports[0]
        """The port of predictions."""

    @property
    def alive(self) -> bool:
        """Whether the server was started and not killed since."""
        return self._process is not None

    @property
    def _server(self) -> TorchServe:
        return TorchServe(self._ports[0], self._ports[1], self._homes[-1] / "torchserve.log")

    def start(self) -> None:
        """Start the server and wait until a worker of each model is ready; raises `DidNotStart` if none is."""
        # the folder's path must stay short: it contains the workers' sockets
        home = Path(tempfile.mkdtemp(prefix="ts-"))
        self._homes.append(home)
        (home / "log4j2.xml").write_text(_LOG4J)
        settings = {"job_queue_size": "2000", "metrics_config": str(_METRICS), "metrics_mode": "log"}
        if len(self._models) > 1:
            settings["vmargs"] = f"-Dlog4j.configurationFile=file://{home}/log4j2.xml"
        (home / "config.properties").write_text(properties(self._ports, settings))
        with (home / "torchserve.log").open("wb") as log:
            self._process = subprocess.Popen(
                command(Path(sys.executable), home, self._store, self._models),
                cwd=home,
                env={**os.environ, **host_environment(home), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until_ready(self._server, self._process, self._models, 120)

    def kill(self) -> None:
        """Kill the server and its workers at once, as in a failure of the machine."""
        if self._process is not None:
            process, self._process = self._process, None
            stop(process)

    def workers(self) -> dict[str, int]:
        """Return the process ids of the workers by model and number; none if the server does not answer."""
        process = self._process
        try:
            pids = {name: sorted(self._server.worker_pids(name)) for name in self._models}
        except (urllib.error.URLError, ConnectionError, TimeoutError, KeyError):
            return {}
        found = {f"{name} {number}": pid for name, ids in pids.items() for number, pid in enumerate(ids, 1)}
        return {name: pid for name, pid in found.items() if process is not None and _is_of(pid, process.pid)}

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a random worker, in any state. Returns whether there was one."""
        pids = list(self.workers().values())
        with suppress(ProcessLookupError):
            if pids:
                os.kill(chance.choice(pids), signal.SIGKILL)
                return True
        return False

    def close(self) -> None:
        """Stop the server and remove the files that it has written."""
        self.kill()
        for home in self._homes:
            shutil.rmtree(home, ignore_errors=True)


def _is_of(pid: int, group: int) -> bool:
    """Whether the process was started by this server: the reported id may be of a process that has ended."""
    try:
        return pid > 0 and os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def steady_ports(count: int) -> list[int]:
    """Return free ports that no client gets for its own end of a connection while the server is down."""
    ports: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(range(20_000, 32_000), 1000):
            bound = stack.enter_context(socket.socket())
            with suppress(OSError):
                bound.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError(f"this machine has no {count} free ports between 20000 and 32000")
