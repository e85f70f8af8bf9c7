"""A TorchServe under the settings of a contestant, and the CPU time of its processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from torchserve_process import TorchServe, free_ports, host_environment, serving

from torchserve_neuron_lstm.hosts.torchserve.log_configuration import log_configuration
from torchserve_neuron_lstm.hosts.torchserve.process import running
from torchserve_neuron_lstm.hosts.torchserve.properties import ServeSettings, properties, properties_text

from .contestants import Contestant

_METRICS = Path(__file__).resolve().parents[2] / "config" / "metrics.yaml"
_BODY_BYTES = 1_000_000


class CpuTime(NamedTuple):
    """Seconds of CPU time of a server's processes since their start."""

    java: float
    workers: float


class Server(NamedTuple):
    """A running server."""

    served: TorchServe
    model: str

    def cpu_time(self) -> CpuTime:
        """The CPU time until now."""
        workers = [psutil.Process(pid) for pid in self.served.worker_pids(self.model)]
        java = workers[0].parent()
        assert java is not None
        return CpuTime(_seconds(java), sum(_seconds(worker) for worker in workers))


def _seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


@contextmanager
def started(contestant: Contestant, stores: Path) -> Iterator[Server]:
    """Serve the archive of a contestant, which is in its folder of `stores`."""
    store, file = stores / contestant.store, f"{contestant.handler}.mar"
    if contestant.settings == "stock":
        with serving(store, {contestant.handler: file}, settings={"job_queue_size": "1000"}) as served:
            yield Server(served, contestant.handler)
        return
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        home = Path(folder)
        ports = free_ports(5)
        own = {
            "inference_address": f"http://127.0.0.1:{ports[0]}",
            "management_address": f"http://127.0.0.1:{ports[1]}",
            "metrics_address": f"http://127.0.0.1:{ports[2]}",
            "grpc_inference_port": str(ports[3]),
            "grpc_management_port": str(ports[4]),
        }
        overrides = {**own, **contestant.overrides}
        settings = ServeSettings({contestant.handler: file}, _BODY_BYTES, tokens=False, overrides=overrides)
        (home / "config.properties").write_text(properties_text(properties(settings, _METRICS)))
        (home / "log4j2.xml").write_text(log_configuration(with_file=False))
        words = ["--start", "--foreground", "--ncs", "--model-store", str(store)]
        words += ["--ts-config", str(home / "config.properties")]
        words += [] if contestant.stock_log else ["--log-config", str(home / "log4j2.xml")]
        log = home / "torchserve.log"
        with log.open("w") as lines, running(home, words, host_environment(home), lines.write) as process:
            process.wait_until_ready(own["management_address"], contestant.handler)
            yield Server(TorchServe(ports[0], ports[1], log), contestant.handler)
