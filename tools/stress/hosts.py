"""The archives under stress, and a TorchServe that can be killed as in a crash and started again on the same ports."""

from __future__ import annotations

import os
import random
import signal
import urllib.error
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import torch
from torchserve_process import TorchServe, free_ports, serving

from torchserve_neuron_lstm.hosts.torchserve.process import log_configuration

from ..bench.harness import package
from .bad_requests import LONGEST, MOST_BYTES, MOST_SEQUENCES, MOST_TIMESTEPS, STREAM, TAGGER
from .checks import LONGEST_CHUNK
from .model import Tagger

_METRICS = Path(__file__).parents[2] / "config" / "metrics.yaml"
_CONFIG = """\
neuron_lstm:
  inputs:
    ids: {dtype: int64, shape: [batch, time]}
  lengths: lengths
  outputs: [tags, topic]
"""
_LENGTHS = {TAGGER: f"[16, {LONGEST}]", STREAM: f"[{LONGEST_CHUNK}]"}
_LIMITS = f"  limits: {{sequences: {MOST_SEQUENCES}, timesteps: {MOST_TIMESTEPS}, body_bytes: {MOST_BYTES}}}\n"


def make_model() -> Tagger:
    """Return the model with weights that are the same in every run."""
    torch.manual_seed(0)
    return Tagger().eval()


def make_archive(model: Tagger, store: Path, name: str, workers: int, backend: str, streaming: str = "") -> Path:
    """Write `NAME.mar` to the folder `store`, for sessions if there is a block `streaming`; returns its path."""
    sizes = f"  backend: {backend}\n  buckets: {{batch: [1, 16], length: {_LENGTHS[name]}}}\n"
    block = f"  streaming: {streaming}\n" if streaming else _LIMITS
    frontend = {"minWorkers": workers, "maxWorkers": workers, "batchSize": 16}
    package(model, _CONFIG + sizes + block, store, name, frontend=frontend)
    return store / f"{name}.mar"


class Host:
    """A server process and its workers, always on the same ports. The caller closes it."""

    def __init__(self, store: Path, names: Sequence[str], environment: Mapping[str, str]) -> None:
        self._store, self._environment = store, environment
        self._models = {name: f"{name}.mar" for name in names}
        self._ports = free_ports(5)
        self._running = ExitStack()
        self.server: TorchServe | None = None
        """None unless it was started and not killed since."""
        self.port = self._ports[0]
        """The port of predictions."""

    def start(self) -> None:
        """Start the server and wait until a worker of each model is ready; raises `DidNotStart` if none is."""
        log4j = self._store / "log4j2.xml"
        log4j.write_text(log_configuration(with_file=False))  # a line for every request would fill the disk
        settings = {
            "job_queue_size": "2000",
            "metrics_config": str(_METRICS),
            "metrics_mode": "log",
            "vmargs": f"-Dlog4j.configurationFile=file://{log4j}",
        }
        server = serving(self._store, self._models, settings=settings, environment=self._environment, ports=self._ports)
        self.server = self._running.enter_context(server)

    def close(self) -> None:
        """Kill the server and its workers at once, as in a failure of the machine."""
        self.server = None
        self._running.close()

    def workers(self) -> dict[str, int]:
        """Return the process ids of the workers by model and number; none if the server does not answer."""
        server = self.server  # another thread may close it
        try:
            pids = {name: sorted(server.worker_pids(name)) for name in self._models if server}
        except (urllib.error.URLError, ConnectionError, TimeoutError, KeyError):
            return {}
        return {f"{name} {n}": pid for name, ids in pids.items() for n, pid in enumerate(ids, 1) if _is_worker(pid)}

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a random worker, in any state. Returns whether there was one."""
        pids = list(self.workers().values())
        with suppress(ProcessLookupError, IndexError):
            os.kill(chance.choice(pids), signal.SIGKILL)
            return True
        return False


def _is_worker(pid: int) -> bool:
    """Whether the process is a worker: the reported id may be of a process that has ended."""
    try:
        return pid > 0 and any("model_service_worker" in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
