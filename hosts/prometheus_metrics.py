"""Metrics of batches by Prometheus's client, for servers that show them on a page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ..bucketing.shapes import BucketGrid
from ..handlers.metrics import METRICS, BatchMetrics


class PrometheusMetrics:
    """Reports the batches of one model. The process may have other models, and other versions of it."""

    version = ""
    """That of the model, once it is loaded."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._labelled = cache(self._with_labels)

    def report(self, batch: BatchMetrics, grid: BucketGrid) -> None:
        """Count one batch."""
        for number, metric in enumerate(METRICS):
            for own, value in metric.values(batch, grid).items():
                if metric.type == "histogram":
                    self._labelled(number, own, self.version).observe(value)
                elif value:
                    self._labelled(number, own, self.version).inc(value)

    def _with_labels(self, number: int, own: str, version: str) -> Any:
        """Return a metric with its labels, which takes as long to look up as to count."""
        labels = {"ModelName": self._model, "ModelVersion": version}
        dimension = METRICS[number].dimension
        return _metrics()[number].labels(**labels, **({dimension: own} if dimension else {}))


def page_of_processes() -> bytes:
    """Return the page that sums the values of all processes that share PROMETHEUS_MULTIPROC_DIR, ended ones too."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # its __init__ alone has no types
    return generate_latest(registry)


@cache
def _metrics() -> Sequence[Counter | Histogram]:
    """Make the metrics, which a process may do once."""
    kinds = {"counter": Counter, "histogram": Histogram}
    labels = ("ModelName", "ModelVersion")
    return [
        kinds[one.type](one.name, one.name.replace("_", " "), (*labels, *filter(None, [one.dimension])))
        for one in METRICS
    ]
