"""The compared application: plain code of someone who knows Ray Serve and ONNX Runtime.

Batches are made by `@serve.batch`, padded, and run by one session for all shapes. Torch's exporter gives the LSTM
operator the lengths, so that padding costs time and changes no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request

from .onnx_session import open_session

LARGEST_BATCH = 32
WAIT_SECONDS = 0.001


class PaddedClassifier:
    """A replica with the exported model, whose rows are sorted by length."""

    def __init__(self, file: str, threads: int) -> None:
        """`file` is the ONNX model."""
        self._session = open_session(Path(file), threads)

    @serve.batch(max_batch_size=LARGEST_BATCH, batch_wait_timeout_s=WAIT_SECONDS)  # type: ignore[untyped-decorator]  # Ray's
    async def scores(self, sequences: list[list[int]]) -> list[list[float]]:
        """Map token ids to scores, one list for each sequence."""
        order = sorted(range(len(sequences)), key=lambda row: -len(sequences[row]))
        found = self._run([sequences[row] for row in order])
        answers: list[list[float]] = [[]] * len(sequences)
        for row, scores in zip(order, found.tolist(), strict=True):
            answers[row] = scores
        return answers

    async def __call__(self, request: Request) -> list[float]:
        """Answer one HTTP request."""
        scores: list[float] = await self.scores(await request.json())
        return scores

    def _run(self, sequences: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        ids = np.zeros((len(sequences), int(lengths[0])), np.int64)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = sequence
        scores: np.ndarray[Any, np.dtype[np.float32]] = self._session.run(None, {"ids": ids, "lengths": lengths})[0]
        return scores


def application(file: str, threads: int, replicas: int) -> serve.Application:
    """Build the application: as many requests at once as two batches, and some that wait."""
    options = {
        "name": "plain",
        "num_replicas": replicas,
        "max_ongoing_requests": 5 * LARGEST_BATCH,
        "ray_actor_options": {"num_cpus": threads},
    }
    return serve.deployment(PaddedClassifier).options(**options).bind(file, threads)
