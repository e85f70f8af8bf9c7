"""Interface of a host: what a server decides for the service of an archive."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from ..bucketing.shapes import BucketGrid
from .formats.request import ModelIdentity
from .metrics import BatchMetrics

Report = Callable[[BatchMetrics, BucketGrid], None]
"""A function that receives the metrics of each batch, and the grid of its model."""


@dataclass(frozen=True)
class Host:
    """A server, as the service of one archive sees it. The adapter of each server makes one."""

    directory: Path
    """The folder of the unpacked archive."""
    model: ModelIdentity
    """Name and version under which the model is served."""
    max_response_bytes: int
    """The largest body of a response that the server sends."""
    response_timeout_ms: float
    """Milliseconds after which the server gives a batch up."""
    report: Report
    environment: MutableMapping[str, str]
    """The variables of the process, which a placement may add to."""
    workers: object = None
    """Workers that share this machine's cores; anything but a positive integer: one for each core."""
    threads: int | None = None
    """Threads of each program call; None: the archive's, or this worker's share of the cores."""
    device: str | None = None
    """The GPU that the server gives to this worker, e.g. cuda:1; None: none."""
