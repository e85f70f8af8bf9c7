"""One Ray cluster, one TorchServe and the same archives on both. `make test-hosts` runs these tests."""

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from host_archives import Archives
from torchserve_process import TorchServe, free_ports, serving

os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_memory_monitor_refresh_ms="0",
    RAY_DEDUP_LOGS="0",
    # Ray's processes start slowly beside other tests: they have a low priority, and a proxy is killed after 5 s.
    RAY_worker_niceness="0",
    RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="60",
)

SERVICER_FUNCTION = "torchserve_neuron_lstm.hosts.grpc.methods.add_inference_service"
MODELS = ("scorer", "tagger", "stream")


@pytest.fixture(scope="session")
def torchserve(archives: Archives) -> Iterator[TorchServe]:
    python = Path(sysconfig.get_path("purelib")).parents[2] / "bin" / "python"
    with serving(archives.folder, {name: f"{name}.mar" for name in MODELS}, python=python) as running:
        yield running


@dataclass(frozen=True)
class Ports:
    http: int
    grpc: int


@pytest.fixture(scope="session")
def ray_ports(archives: Archives) -> Iterator[Ports]:
    import ray
    from ray import serve

    from torchserve_neuron_lstm.hosts.ray import app

    ports = Ports(*free_ports(2))
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": ports.http},
        grpc_options={"port": ports.grpc, "grpc_servicer_functions": [SERVICER_FUNCTION]},
    )
    paths = {name: str(archives.path(name)) for name in MODELS}
    serve.run(app({"archives": paths}), route_prefix="/")
    yield ports
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="session")
def ray_port(ray_ports: Ports) -> int:
    return ray_ports.http
