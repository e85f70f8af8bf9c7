"""One Ray cluster, one TorchServe and the same archives on both. `make test-hosts` runs these tests."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from archiving import archived, write_source
from served_models import SCORER, SCORING, TAGGER, TAGGING
from torchserve_process import TorchServe, free_ports, serving

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_memory_monitor_refresh_ms="0", RAY_DEDUP_LOGS="0")

STREAMING = """
inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}
lengths: lengths
outputs: [scores]
buckets: {batch: [1, 8], length: [16]}
backend: native
streaming: {store: disk}
"""
MODELS = {"scorer": (SCORER, SCORING), "tagger": (TAGGER, TAGGING), "stream": (SCORER, STREAMING)}


@dataclass(frozen=True)
class Archives:
    """The folder of the archives, and that of the sessions on disk."""

    folder: Path
    sessions: Path

    def path(self, name: str) -> Path:
        """The file of one archive."""
        return self.folder / f"{name}.mar"


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Three models, packaged by the standard command."""
    folder, work = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("sources")
    sessions = tmp_path_factory.mktemp("sessions")
    os.environ["NEURON_LSTM_SESSIONS"] = str(sessions)
    for name, (file, block) in MODELS.items():
        archived(write_source(work / name, file, block), name, folder)
    return Archives(folder, sessions)


@pytest.fixture(scope="session")
def torchserve(archives: Archives) -> Iterator[TorchServe]:
    """A stock TorchServe, of the project's own environment."""
    python = Path(sysconfig.get_path("purelib")).parents[2] / "bin" / "python"
    with serving(archives.folder, {name: f"{name}.mar" for name in MODELS}, python=python) as running:
        yield running


@pytest.fixture(scope="session")
def ray_port(archives: Archives) -> Iterator[int]:
    """The HTTP port of Ray Serve with the application of the three archives."""
    import ray
    from ray import serve

    from torchserve_neuron_lstm.hosts.ray import app

    (port,) = free_ports(1)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    paths = {name: str(archives.path(name)) for name in MODELS}
    serve.run(app({"archives": paths}), route_prefix="/")
    yield port
    serve.shutdown()
    ray.shutdown()
