"""What TorchServe is told of a batch: its metrics, as far as the server's metrics file declares them.

A worker tells its frontend of a metric by a line on its standard output. TorchServe's Python API writes one line a
call, each a log record of its own; here a whole batch is one record of several lines, which costs a tenth.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
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
        """As TorchServe writes it."""

    @property
    def dimension_names(self) -> Sequence[str]:
        """In the order of their values."""


@dataclass(frozen=True)
class Metric:
    """One metric: `values` gives its value of a batch, by the value of its own dimension ("" where it has none)."""

    name: str
    type: MetricType
    values: Callable[[BatchMetrics, BucketGrid], Mapping[str, float]]
    dimension: str | None = None

    @property
    def dimensions(self) -> tuple[str, ...]:
        """As the server's metrics file must declare them; TorchServe adds the host's name."""
        return MODEL_DIMENSIONS if self.dimension is None else (self.dimension, *MODEL_DIMENSIONS)


METRICS = (
    Metric("neuron_lstm_requests_total", "counter", lambda counts, _: {"": counts.requests}),
    Metric("neuron_lstm_sequences_total", "counter", lambda counts, _: {"": counts.sequences}),
    Metric("neuron_lstm_useful_timesteps_total", "counter", lambda counts, _: {"": counts.work.useful_timesteps}),
    Metric("neuron_lstm_padded_timesteps_total", "counter", lambda counts, _: {"": counts.padded_timesteps}),
    Metric("neuron_lstm_executions_total", "counter", lambda counts, grid: counts.executions(grid), "Bucket"),
    Metric("neuron_lstm_rejected_total", "counter", lambda counts, _: counts.rejected, "Reason"),
    Metric("neuron_lstm_repeated_total", "counter", lambda counts, _: {"": counts.replayed}),
    Metric("neuron_lstm_sessions_expired_total", "counter", lambda counts, _: {"": counts.expired}),
    Metric("neuron_lstm_plan_milliseconds_total", "counter", lambda counts, _: {"": counts.work.plan_seconds * 1000}),
    Metric("neuron_lstm_engine_seconds", "histogram", lambda counts, _: {"": counts.work.engine_seconds}),
    Metric("neuron_lstm_batch_seconds", "histogram", lambda counts, _: {"": counts.seconds}),
)


def declared_units(find: Callable[[Metric], DeclaredMetric | None]) -> dict[str, str]:
    """The unit of each metric that the server's file declares, by name; `find` looks one up.

    One that is declared with other dimensions is left out, with a warning: TorchServe matches them by their order.
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
                "the server's metrics file declares %s with the dimensions %s; it is not sent, for it has %s",
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
    """Of each metric that the server knows; the others are left out, for the server would log and then drop them."""
    host: str

    def lines(self, counts: BatchMetrics, time: int) -> Iterator[str]:
        """One line for each value that is not 0; `time` is in seconds since the epoch.

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
            for own, value in metric.values(counts, self.grid).items():
                if value:
                    dimensions = f"{metric.dimension}:{own},{model}" if metric.dimension else model
                    number = value if isinstance(value, int) else f"{value:.6f}"
                    yield f"[METRICS]{metric.name}.{unit}:{number}|#{dimensions}|#type:{metric.type.upper()}|{end}"


@dataclass(frozen=True)
class BatchMetrics:
    """One batch of rows.

    >>> from torchserve_neuron_lstm.bucketing.plan import Bucket, Plan, Run
    >>> two_runs = Plan((ProgramCall(Bucket(1, 8), (1,)), ProgramCall(Bucket(4, 8), (0, 2))))
    >>> counts = BatchMetrics(requests=2, work=BatchStats((3, 8, 3), useful_timesteps=14, plans=(two_runs,)))
    >>> counts.sequences, counts.padded_timesteps, counts.lengths_text
    (3, 26, '3:2 8:1')
    """

    requests: int
    work: BatchStats = field(default_factory=BatchStats)
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Requests without an answer, by the kind of their RequestError."""
    seconds: float = 0.0
    """From the rows to the responses: decoding and encoding included."""
    replayed: int = 0
    """Pieces of sessions that were applied before: they were answered as they were then."""
    expired: int = 0
    """Sessions that were removed because they were idle."""

    @property
    def sequences(self) -> int:
        """Accepted ones: a request may hold several, and a refused one counts none."""
        return len(self.work.lengths)

    @property
    def padded_timesteps(self) -> int:
        """What was computed beside the real timesteps."""
        return sum(plan.computed_timesteps for plan in self.work.plans) - self.work.useful_timesteps

    @property
    def lengths_text(self) -> str:
        """The lengths and how often each came, ascending, as the worker's log has them."""
        return " ".join(f"{length}:{count}" for length, count in sorted(Counter(self.work.lengths).items()))

    def executions(self, grid: BucketGrid) -> Mapping[str, int]:
        """Program calls by bucket, heads left out: a call of no bucket's own shape counts for the one that holds it.

        So an engine that takes every shape has no more names than the grid has buckets.

        >>> from torchserve_neuron_lstm.bucketing.plan import Bucket, Plan, Run
        >>> stair = Plan((ProgramCall(Bucket(2, 3), (1, 0)), ProgramCall(Bucket(1, 4), (1,), start=3)))
        >>> BatchMetrics(requests=2, work=BatchStats(plans=(stair,))).executions(BucketGrid((1, 4), (8, 16)))
        {'4x8': 1, '1x8': 1}
        """
        calls = Counter(run.bucket for plan in self.work.plans for run in plan.runs)
        named: dict[str, int] = {}
        for bucket, count in calls.items():
            name = f"{_holding(bucket.batch, grid.batches)}x{_holding(bucket.length, grid.lengths)}"
            named[name] = named.get(name, 0) + count
        return named


def _holding(size: int, edges: Sequence[int]) -> int:
    """The smallest edge that holds `size`, or the largest there is."""
    return edges[min(bisect_left(edges, size), len(edges) - 1)]
