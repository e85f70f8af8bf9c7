"""Requests per second of two replicas with one thread each, beside those of one.

A request has many long sequences, as binary tensors of the Open Inference Protocol, so that what Ray Serve, HTTP and
JSON cost is small beside the engine.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
import torch

from torchserve_neuron_lstm.inference.open_archive import OpenArchive, open_archive

from ..load import http_post, load
from ..rest.archives import LONGEST
from .servers import RayServer

_SEQUENCES = 64
_TOKENS = 10_000
_CLIENTS = 4
_APPLICATIONS = {1: "one", 2: "two"}
"""Route prefixes of our application by its replicas."""


@dataclass(frozen=True)
class Scaling:
    """Requests per second of one and two replicas by round, and the engine's share of the CPU time."""

    one: tuple[float, ...]
    two: tuple[float, ...]
    engine_share: float

    @property
    def times(self) -> float:
        """The ratio of the medians."""
        return median(self.two) / median(self.one)


def measure(server: RayServer, archive: Path, rounds: int, seconds: float) -> Scaling:
    """Load one and two replicas in turns. The engine is timed before each: the speed of cores changes."""
    generator = random.Random(0)
    sequences = [torch.tensor([generator.randrange(_TOKENS) for _ in range(LONGEST)]) for _ in range(_SEQUENCES)]
    found: dict[int, list[float]] = {1: [], 2: []}
    shares: list[float] = []
    with open_archive(archive, threads=1) as model:
        _engine_seconds(model, sequences)
        for number in range(rounds):
            for replicas in (1, 2) if number % 2 == 0 else (2, 1):
                request = _binary_request(f"/{_APPLICATIONS[replicas]}/v2/models/ours/infer", torch.stack(sequences))
                engine = _engine_seconds(model, sequences)
                before = _cpu_seconds(server)
                done = load(server.port, [request], _CLIENTS, seconds)
                found[replicas].append(len(done.milliseconds) / done.seconds)
                shares.append(engine * len(done.milliseconds) / (_cpu_seconds(server) - before))
    return Scaling(tuple(found[1]), tuple(found[2]), median(shares))


def _binary_request(path: str, ids: torch.Tensor) -> bytes:
    data = ids.numpy().tobytes()
    given = {"name": "ids", "shape": [*ids.shape], "datatype": "INT64", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    return http_post(path, head + data, headers={"Inference-Header-Content-Length": str(len(head))})


def _engine_seconds(model: OpenArchive, sequences: Sequence[torch.Tensor]) -> float:
    """Return the CPU seconds of one request in the engine alone: the median of some calls in this process."""
    taken = []
    for _ in range(5):
        began = time.process_time()
        model.predict(sequences)
        taken.append(time.process_time() - began)
    return median(taken)


def _cpu_seconds(server: RayServer) -> float:
    """Return the CPU seconds of the server's processes and of this one, which has the clients."""
    every = [psutil.Process(), *psutil.Process(server.process.pid).children(recursive=True)]
    total = 0.0
    for process in every:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
