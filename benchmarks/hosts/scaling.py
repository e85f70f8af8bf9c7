"""Requests per second of two replicas with one thread each, compared with one.

A request has many long sequences, so that the cost of Ray Serve and HTTP is small compared with the engine's.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
_ENGINE_CALLS = 5
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
    """Load one and two replicas in turns. The engine is timed before and after: cores change speed."""
    generator = random.Random(0)
    instances = [[generator.randrange(_TOKENS) for _ in range(LONGEST)] for _ in range(_SEQUENCES)]
    body = json.dumps({"instances": instances}).encode()
    sequences = [torch.tensor(ids) for ids in instances]
    found: dict[int, list[float]] = {1: [], 2: []}
    engine = spent = 0.0
    with ExitStack() as stack:
        models = [stack.enter_context(open_archive(archive, threads=1)) for _ in _APPLICATIONS]
        for number in range(rounds):
            for replicas in (1, 2) if number % 2 == 0 else (2, 1):
                request = http_post(f"/{_APPLICATIONS[replicas]}/v1/models/ours:predict", body)
                engine_before = _engine_seconds(models[:replicas], sequences)
                before = _cpu_seconds(server)
                done = load(server.port, [request], _CLIENTS, seconds)
                spent += _cpu_seconds(server) - before
                each = (engine_before + _engine_seconds(models[:replicas], sequences)) / 2
                engine += each * len(done.milliseconds)
                found[replicas].append(len(done.milliseconds) / done.seconds)
    return Scaling(tuple(found[1]), tuple(found[2]), engine / spent)


def _engine_seconds(models: Sequence[OpenArchive], sequences: Sequence[torch.Tensor]) -> float:
    """Return the CPU seconds of one request in the engine alone, in this process.

    As many compute at once as there are replicas, because cores share caches and power.
    """
    calls = [*models] * _ENGINE_CALLS
    with ThreadPoolExecutor(len(models)) as threads:
        began = time.process_time()
        for _ in threads.map(lambda model: model.predict(sequences), calls):
            pass
        return (time.process_time() - began) / len(calls)


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
