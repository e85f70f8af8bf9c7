"""Ray Serve with our archive and with plain applications, behind the same ingress.

The plain one is code of someone who knows Ray Serve and ONNX Runtime. Batches are made by `@serve.batch`, padded, and
run by one session for all shapes. Torch's exporter gives the LSTM operator the lengths, so that padding costs time and
changes no answer.

The first line of the output is `ready`; the program ends with its standard input.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig
from starlette.requests import Request

from torchserve_neuron_lstm.hosts.ray import app

from .onnx_session import open_session

CPUS = 64
"""Logical CPUs of the node: all applications have all real ones, in turns."""
CORES = len(os.sched_getaffinity(0))
PLAIN = {"plain": (CORES, 1), "plain-replicas": (1, CORES)}
"""Threads and replicas of the plain applications: one replica with all cores, and one for each core."""
LARGEST_BATCH = 32
WAIT_SECONDS = 0.001


class PaddedClassifier:
    """A replica with the exported model."""

    def __init__(self, file: str, threads: int) -> None:
        """`file` is the ONNX model."""
        self._session = open_session(Path(file), threads)

    @serve.batch(max_batch_size=LARGEST_BATCH, batch_wait_timeout_s=WAIT_SECONDS)  # type: ignore[untyped-decorator]  # Ray's
    async def scores(self, sequences: list[list[int]]) -> list[list[float]]:
        """Map token ids to scores, one list for each sequence."""
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        ids = np.zeros((len(sequences), int(lengths.max())), np.int64)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = sequence
        scores: list[list[float]] = self._session.run(None, {"ids": ids, "lengths": lengths})[0].tolist()
        return scores

    async def __call__(self, request: Request) -> list[float]:
        """Answer one HTTP request."""
        scores: list[float] = await self.scores(await request.json())
        return scores


def plain(file: str, threads: int, replicas: int) -> serve.Application:
    """Build the application: as many requests at once as two batches, and some that wait."""
    options = {
        "name": "plain",
        "num_replicas": replicas,
        "max_ongoing_requests": 5 * LARGEST_BATCH,
        "ray_actor_options": {"num_cpus": threads},
    }
    return serve.deployment(PaddedClassifier).options(**options).bind(file, threads)


def main() -> None:
    """Serve until the standard input ends."""
    port, archive, onnx = sys.argv[1:]
    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, configure_logging=False)
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)  # else each line is made, and then dropped
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=int(port)), logging_config=quiet)
    applications = {"ours": app({"archive": archive, "threads": 1, "replicas": CORES})}
    applications |= {name: plain(onnx, *sizes) for name, sizes in PLAIN.items()}
    serve.run_many([serve.RunTarget(made, name, f"/{name}", quiet) for name, made in applications.items()])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
