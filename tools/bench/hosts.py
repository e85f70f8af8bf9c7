"""`make bench-hosts`: our archive on Ray Serve, compared with plain applications and TorchServe.

All have the same model and all cores, and the same clients send them requests in turns. The applications are behind
the same ingress of Ray Serve, with its settings for throughput and without access logs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import torch
from torchserve_process import free_ports, serving

from .classifiers import OURS, compare, load_server, make_archive, make_model
from .harness import BenchmarkFailed, in_rounds, ratio
from .load import Loaded
from .onnx_session import CLASSIFIER, export
from .report import Result, Row, Table

_RAY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # a line for each request, which a Python process parses
    # Both happen every 100 ms otherwise, also while no request comes.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray gives its workers a low priority, which TorchServe's do not have.
    "RAY_worker_niceness": "0",
}
"""Ray reads them when it is imported."""
_CLIENTS = 64
_ON_RAY = "ours on Ray Serve"
Contestant = tuple[int, str]
"""A server's port, and the path of its model."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the program's options."""
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of load in a turn (default: %(default)s)")


def measure(options: argparse.Namespace) -> Result:
    """Package, serve, compare with eager mode, and load in turns."""
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        store, model = Path(folder), make_model()
        archive, onnx = make_archive(model, OURS, store), store / "model.onnx"
        export(model, torch.zeros(2, 3, dtype=torch.int64), CLASSIFIER, onnx)
        with ExitStack() as stack:
            torchserve = stack.enter_context(serving(store, {OURS: archive.name}))
            ray = stack.enter_context(_ray_serving(archive, onnx))
            contestants = {
                _ON_RAY: (ray, f"/ours/predictions/{OURS}"),
                "plain": (ray, "/plain"),
                "plain, a thread each": (ray, "/plain-replicas"),
                "ours on TorchServe": (torchserve.inference, f"/predictions/{OURS}"),
            }
            for port, path in contestants.values():
                compare(port, path, model)
            table = Table(f"Under the load of {_CLIENTS} clients", [*_rows(_rounds(contestants, options))])
    return Result([table])


@contextmanager
def _ray_serving(archive: Path, onnx: Path) -> Iterator[int]:
    """Serve the applications of `ray_server`, and yield its port; raises `BenchmarkFailed` if Ray Serve ends."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tools.bench.ray_server", str(port), str(archive), str(onnx)]
    root, pipe = Path(__file__).resolve().parents[2], subprocess.PIPE
    variables = {**os.environ, **_RAY}
    with subprocess.Popen(command, cwd=root, env=variables, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not any(line.strip() == "ready" for line in process.stdout):
                raise BenchmarkFailed(f"Ray Serve ended with {process.wait()}")
            yield port
        finally:
            process.stdin.close()


def _rounds(contestants: Mapping[str, Contestant], options: argparse.Namespace) -> dict[str, list[Loaded]]:
    """Load all in turns; the first round is a warm-up that is not counted."""
    rounds: dict[str, list[Loaded]] = {name: [] for name in contestants}
    for number, name in in_rounds(contestants, options.rounds + 1):
        loaded = load_server(*contestants[name], _CLIENTS, options.seconds, number)
        rounds[name] += [loaded] if number else []
    return rounds


def _rows(rounds: Mapping[str, Sequence[Loaded]]) -> Iterator[Row]:
    ours = [loaded.rate for loaded in rounds[_ON_RAY]]
    for name, taken in rounds.items():
        rates = [loaded.rate for loaded in taken]
        figures = {
            "requests/s": median(rates),
            "p99, ms": median(loaded.p99 for loaded in taken),
            "requests/s, times ours": ratio(rates, ours),
        }
        yield Row("", name, figures, rates)
