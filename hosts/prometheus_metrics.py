"""Metrics of batches by Prometheus's client, for servers that show them on a page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ..bucketing.shapes import BucketGrid
from ..handlers.metrics import METRICS, BatchMetrics, Metric


class PrometheusMetrics:
    """Reports the batches of one model. The process may have other models, and other versions of it."""

    version = ""
    """That of the model, once it is loaded."""

    def __init__(self, model: str) -> None:
        self._model = model

    def report(self, batch: BatchMetrics, grid: BucketGrid) -> None:
        """Count one batch."""
        model = {"ModelName": self._model, "ModelVersion": self.version}
        for metric, target in _metrics():
            for own, value in metric.values(batch, grid).items():
                labels = model | ({metric.dimension: own} if metric.dimension else {})
                if isinstance(target, Histogram):
                    target.labels(**labels).observe(value)
                elif value:
                    target.labels(**labels).inc(value)


def page_of_processes() -> bytes:
    """Return the page that sums the values of all processes that share PROMETHEUS_MULTIPROC_DIR, ended ones too."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # its __init__ alone has no types
    return generate_latest(registry)


@cache
def _metrics() -> Sequence[tuple[Metric, Counter | Histogram]]:
    """Make the metrics, which a process may do once."""
    kinds = {"counter": Counter, "histogram": Histogram}
    labels = ("ModelName", "ModelVersion")
    return [
        (one, kinds[one.type](one.name, one.name.replace("_", " "), (*labels, *filter(None, [one.dimension]))))
        for one in METRICS
    ]
