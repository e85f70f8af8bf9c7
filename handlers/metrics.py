"""Metrics of a batch, as far as the server's metrics file declares them.

A worker reports a metric to its frontend by a line on its standard output. TorchServe's Python API writes one line a
call, each a log record of its own; here a whole batch is one record of several lines, which costs a tenth.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..bucketing.shapes import BucketGrid
from .batch import BatchStats

_log = logging.getLogger(__name__)

MetricType = Literal["counter", "histogram"]
MODEL_DIMENSIONS = ("ModelName", "Level")


class DeclaredMetric(Protocol):
    """A metric of the server's metrics file: `ts.metrics.caching_metric.CachingMetric`."""

    @property
    def unit(self) -> str:
        """The unit, as TorchServe writes it."""

    @property
    def dimension_names(self) -> Sequence[str]:
        """The names of the dimensions, in the order of their values."""


@dataclass(frozen=True)
class Metric:
    """One metric: `values` returns its values for a batch, by the value of its own dimension ("" if it
    has none).
    """

    name: str
    type: MetricType
    values: Callable[[BatchMetrics, BucketGrid], Mapping[str, float]]
    dimension: str | None = None

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The dimensions that the server's metrics file must declare; TorchServe adds the host's name."""
        return MODEL_DIMENSIONS if self.dimension is None else (self.dimension, *MODEL_DIMENSIONS)


METRICS = (
    Metric("neuron_lstm_requests_total", "counter", lambda batch, _: {"": batch.requests}),
    Metric("neuron_lstm_sequences_total", "counter", lambda batch, _: {"": batch.sequences}),
    Metric("neuron_lstm_useful_timesteps_total", "counter", lambda batch, _: {"": batch.stats.real_timesteps}),
    Metric("neuron_lstm_padded_timesteps_total", "counter", lambda batch, _: {"": batch.padded_timesteps}),
    Metric("neuron_lstm_executions_total", "counter", lambda batch, grid: batch.executions(grid), "Bucket"),
    Metric("neuron_lstm_rejected_total", "counter", lambda batch, _: batch.rejected, "Reason"),
    Metric("neuron_lstm_repeated_total", "counter", lambda batch, _: {"": batch.replayed}),
    Metric("neuron_lstm_sessions_expired_total", "counter", lambda batch, _: {"": batch.expired}),
    Metric("neuron_lstm_plan_milliseconds_total", "counter", lambda batch, _: {"": batch.stats.plan_seconds * 1000}),
    Metric("neuron_lstm_engine_seconds", "histogram", lambda batch, _: {"": batch.stats.engine_seconds}),
    Metric("neuron_lstm_batch_seconds", "histogram", lambda batch, _: {"": batch.seconds}),
)


def declared_units(find: Callable[[Metric], DeclaredMetric | None]) -> dict[str, str]:
    """Return the unit of each metric that the server's file declares, by name; `find` looks one up.

    A metric that is declared with other dimensions is left out, with a warning: TorchServe matches them by order.
    """
    units = {}
    for metric in METRICS:
        declared = find(metric)
        if declared is None:
            continue
        if tuple(declared.dimension_names) == metric.dimensions:
            units[metric.name] = declared.unit
        else:
            _log.warning(
                "the server's metrics file declares %s with the dimensions %s; it is not sent, because it has %s",
                metric.name,
                list(declared.dimension_names),
                list(metric.dimensions),
            )
    return units


@dataclass(frozen=True)
class MetricReporter:
    """Writes the metrics of a batch as lines that TorchServe reads."""

    model_name: str
    grid: BucketGrid
    units: Mapping[str, str]
    """The unit of each declared metric. Others are left out: the server would log and then drop them."""
    host: str

    def lines(self, batch: BatchMetrics, time: int) -> Iterator[str]:
        """Format one line for each value that is not 0; `time` is in seconds since the epoch.

        >>> declared = {"neuron_lstm_requests_total": "Count"}
        >>> reporter = MetricReporter("tagger", BucketGrid((1,), (8,)), declared, "host1")
        >>> list(reporter.lines(BatchMetrics(requests=3), time=1700000000))
        ['[METRICS]neuron_lstm_requests_total.Count:3|#ModelName:tagger,Level:Model|#type:COUNTER|#hostname:host1,1700000000']
        """
        model, end = f"ModelName:{self.model_name},Level:Model", f"#hostname:{self.host},{time}"
        for metric in METRICS:
            unit = self.units.get(metric.name)
            if unit is None:
                continue
            for own, value in metric.values(batch, self.grid).items():
                if value:
                    dimensions = f"{metric.dimension}:{own},{model}" if metric.dimension else model
                    number = value if isinstance(value, int) else f"{value:.6f}"
                    yield f"[METRICS]{metric.name}.{unit}:{number}|#{dimensions}|#type:{metric.type.upper()}|{end}"


@dataclass(frozen=True)
class BatchMetrics:
    """Metrics of one batch of requests.

    >>> from torchserve_neuron_lstm.bucketing.plan import Bucket, Plan, ProgramCall
    >>> two_runs = Plan((ProgramCall(Bucket(1, 8), (1,)), ProgramCall(Bucket(4, 8), (0, 2))))
    >>> batch = BatchMetrics(requests=2, stats=BatchStats((3, 8, 3), real_timesteps=14, plans=(two_runs,)))
    >>> batch.sequences, batch.padded_timesteps, batch.lengths_text
    (3, 26, '3:2 8:1')
    """

    requests: int
    stats: BatchStats = field(default_factory=BatchStats)
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Refused requests, by the kind of their RequestError."""
    seconds: float = 0.0
    """Seconds from the requests to the responses, decoding and encoding included."""
    replayed: int = 0
    """Requests of sessions that were applied before, and were answered by the stored response."""
    expired: int = 0
    """Sessions removed because they were idle."""

    @property
    def sequences(self) -> int:
        """Accepted sequences: a request may hold several, and a refused one batch none."""
        return len(self.stats.lengths)

    @property
    def padded_timesteps(self) -> int:
        """Computed timesteps that were not real."""
        return sum(plan.computed_timesteps for plan in self.stats.plans) - self.stats.real_timesteps

    @property
    def lengths_text(self) -> str:
        """The lengths and their batch, ascending, in the format of the worker's log."""
        return " ".join(f"{length}:{count}" for length, count in sorted(Counter(self.stats.lengths).items()))

    def executions(self, grid: BucketGrid) -> Mapping[str, int]:
        """Count program calls by bucket, heads left out.

        Another shape batch for the smallest bucket that holds it.

        So an engine with dynamic shapes has no more names than the grid has buckets.

        >>> from torchserve_neuron_lstm.bucketing.plan import Bucket, Plan, ProgramCall
        >>> chunked = Plan((ProgramCall(Bucket(2, 3), (1, 0)), ProgramCall(Bucket(1, 4), (1,), start=3)))
        >>> BatchMetrics(requests=2, stats=BatchStats(plans=(chunked,))).executions(BucketGrid((1, 4), (8, 16)))
        {'4x8': 1, '1x8': 1}
        """
        calls = Counter(run.bucket for plan in self.stats.plans for run in plan.runs)
        named: dict[str, int] = {}
        for bucket, count in calls.items():
            holding = grid.smallest_holding(*bucket)
            name = f"{holding.batch}x{holding.length}"
            named[name] = named.get(name, 0) + count
        return named
