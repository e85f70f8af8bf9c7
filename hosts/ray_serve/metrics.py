"""Metrics of batches, by `ray.util.metrics`: the names that TorchServe has, after Ray's prefix."""

from __future__ import annotations

from ray.util.metrics import Counter, Histogram

from ...bucketing.shapes import BucketGrid
from ...handlers.metrics import METRICS, BatchMetrics, Metric

_BOUNDARIES = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
"""Seconds: those that TorchServe gives all histograms."""


class RayMetrics:
    """Reports the batches of one model to Ray."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._metrics = [(metric, _make(metric)) for metric in METRICS]

    def report(self, batch: BatchMetrics, grid: BucketGrid) -> None:
        """Count one batch."""
        for metric, target in self._metrics:
            for own, value in metric.values(batch, grid).items():
                tags = {"ModelName": self._model} | ({metric.dimension: own} if metric.dimension else {})
                if isinstance(target, Histogram):
                    target.observe(value, tags)
                elif value:  # a Counter refuses 0
                    target.inc(value, tags)


def _make(metric: Metric) -> Counter | Histogram:
    keys = ("ModelName", *([metric.dimension] if metric.dimension else []))
    if metric.type == "histogram":
        return Histogram(metric.name, boundaries=_BOUNDARIES, tag_keys=keys)
    return Counter(metric.name, tag_keys=keys)
