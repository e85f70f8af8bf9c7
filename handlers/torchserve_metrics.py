"""Metrics of a batch for TorchServe, as far as the server's metrics file declares them.

A worker reports a metric to its frontend by a line on its standard output. TorchServe's Python API writes one line a
call, each a separate log record; here a whole batch is one record of several lines, which costs a tenth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..bucketing.shapes import BucketGrid
from .metrics import METRICS, BatchMetrics, Metric

_log = logging.getLogger(__name__)
MODEL_DIMENSIONS = ("ModelName", "Level")
"""The last dimensions of every metric; TorchServe adds the host's name."""


class DeclaredMetric(Protocol):
    """A metric of the server's metrics file: `ts.metrics.caching_metric.CachingMetric`."""

    @property
    def unit(self) -> str:
        """The unit, as TorchServe writes it."""

    @property
    def dimension_names(self) -> Sequence[str]:
        """The names of the dimensions, in the order of their values."""


def dimensions(metric: Metric) -> tuple[str, ...]:
    """Return the dimensions that the server's metrics file must declare, in their order."""
    return MODEL_DIMENSIONS if metric.dimension is None else (metric.dimension, *MODEL_DIMENSIONS)


def declared_units(find: Callable[[Metric], DeclaredMetric | None]) -> dict[str, str]:
    """Return the unit of each metric that the server's file declares, by name; `find` looks one up.

    A metric that is declared with other dimensions is left out, with a warning: TorchServe matches them by order.
    """
    units = {}
    for metric in METRICS:
        declared = find(metric)
        if declared is None:
            continue
        if tuple(declared.dimension_names) == dimensions(metric):
            units[metric.name] = declared.unit
        else:
            _log.warning(
                "the server's metrics file declares %s with the dimensions %s; it is not sent, because it has %s",
                metric.name,
                list(declared.dimension_names),
                list(dimensions(metric)),
            )
    return units


@dataclass(frozen=True)
class MetricReporter:
    """Writes the metrics of a batch as lines that TorchServe reads."""

    model_name: str
    units: Mapping[str, str]
    """The unit of each declared metric. Others are left out: the server would log and then drop them."""
    host: str

    def lines(self, batch: BatchMetrics, grid: BucketGrid, time: int) -> Iterator[str]:
        """Format one line for each value that is not 0; `time` is in seconds since the epoch.

        >>> declared = {"neuron_lstm_requests_total": "Count"}
        >>> reporter = MetricReporter("tagger", declared, "host1")
        >>> list(reporter.lines(BatchMetrics(requests=3), BucketGrid((1,), (8,)), time=1700000000))
        ['[METRICS]neuron_lstm_requests_total.Count:3|#ModelName:tagger,Level:Model|#type:COUNTER|#hostname:host1,1700000000']
        """
        model, end = f"ModelName:{self.model_name},Level:Model", f"#hostname:{self.host},{time}"
        for metric in METRICS:
            unit = self.units.get(metric.name)
            if unit is None:
                continue
            for own, value in metric.values(batch, grid).items():
                if value:
                    named = f"{metric.dimension}:{own},{model}" if metric.dimension else model
                    number = value if isinstance(value, int) else f"{value:.6f}"
                    yield f"[METRICS]{metric.name}.{unit}:{number}|#{named}|#type:{metric.type.upper()}|{end}"
