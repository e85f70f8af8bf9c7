"""A KServe server for each archive, in processes of their own. `make test-hosts` runs these tests.

The generated messages of KServe and of Triton's client cannot be in one process.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from host_archives import Archives
from rest import get
from torchserve_process import free_ports

MODELS = ("scorer", "tagger", "roaming")
MODULE = "torchserve_neuron_lstm.hosts.kserve"


@dataclass(frozen=True)
class KServe:
    http: int
    grpc: int
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> None:
        until = time.monotonic() + 120
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if get(self.http, "/v2/health/live").status == 200:
                    return
            except OSError:
                assert time.monotonic() < until, self.log.read_text()
                time.sleep(0.2)


@contextmanager
def started(archive: Path, log: Path, command: Sequence[str] = ("-m", MODULE)) -> Iterator[KServe]:
    http, grpc = free_ports(2)
    words = ["--archive", str(archive), "--http_port", str(http), "--grpc_port", str(grpc)]
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *command, *words], stdout=file, stderr=file)
    try:
        yield KServe(http, grpc, process, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def kserve(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, KServe]]:
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        servers = {name: stack.enter_context(started(archives.path(name), logs / name)) for name in MODELS}
        for server in servers.values():
            server.wait()
        yield servers
