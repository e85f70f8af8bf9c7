"""Servers of this benchmark, each a separate process that ends with a `with` block."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchserve_process import DidNotStart, free_ports

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RayServer:
    """Ray Serve in a separate process."""

    port: int
    process: subprocess.Popen[str]

    def wait(self) -> None:
        """Wait until the applications run.

        Raises:
            DidNotStart: the process ended.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        raise DidNotStart(f"Ray Serve ended with {self.process.wait()}")


@contextmanager
def ray_serving(archive: Path, onnx: Path, applications: Sequence[str]) -> Iterator[RayServer]:
    """Serve some of the applications of `ray_server` with an archive and an ONNX model."""
    (port,) = free_ports(1)
    options = ["--port", str(port), "--archive", str(archive), "--onnx", str(onnx), "--applications", *applications]
    command = [sys.executable, "-m", "benchmarks.hosts.ray_server", *options]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        server = RayServer(port, process)
        try:
            server.wait()
            yield server
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
