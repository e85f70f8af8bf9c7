"""Metrics of batches, by Prometheus' own client: the names that TorchServe has."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from ..bucketing.shapes import BucketGrid
from ..handlers.metrics import METRICS, BatchMetrics, Metric


class PrometheusMetrics:
    """Reports the batches of one model to the registry that the server's `/metrics` shows."""

    def __init__(self, model: str, registry: CollectorRegistry = REGISTRY) -> None:
        self._model = model
        self._metrics = [(metric, _make(metric, registry)) for metric in METRICS]

    def report(self, batch: BatchMetrics, grid: BucketGrid) -> None:
        """Count one batch."""
        for metric, target in self._metrics:
            for own, value in metric.values(batch, grid).items():
                labels = {"ModelName": self._model} | ({metric.dimension: own} if metric.dimension else {})
                if isinstance(target, Histogram):
                    target.labels(**labels).observe(value)
                else:
                    target.labels(**labels).inc(value)


def _make(metric: Metric, registry: CollectorRegistry) -> Counter | Histogram:
    labels = ("ModelName", *([metric.dimension] if metric.dimension else []))
    text = metric.name.replace("_", " ")
    made = Histogram if metric.type == "histogram" else Counter
    return made(metric.name, text, labels, registry=registry)
