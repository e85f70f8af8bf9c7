"""Metrics of a batch, the same on every host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from ..bucketing.shapes import BucketGrid
from .batch import BatchStats


@dataclass(frozen=True)
class Metric:
    """One metric: `values` returns its values for a batch, by the value of its dimension.

    The key is "" if it has no dimension.
    """

    name: str
    type: Literal["counter", "histogram"]
    values: Callable[[BatchMetrics, BucketGrid], Mapping[str, float]]
    dimension: str | None = None


METRICS = (
    Metric("neuron_lstm_requests_total", "counter", lambda batch, _: {"": batch.requests}),
    Metric("neuron_lstm_sequences_total", "counter", lambda batch, _: {"": batch.sequences}),
    Metric("neuron_lstm_own_model_sequences_total", "counter", lambda batch, _: {"": batch.by_model}),
    Metric("neuron_lstm_shadow_compared_total", "counter", lambda batch, _: {"": batch.compared}),
    Metric("neuron_lstm_shadow_different_total", "counter", lambda batch, _: {"": batch.different}),
    Metric("neuron_lstm_shadow_dropped_total", "counter", lambda batch, _: {"": batch.dropped}),
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


class BatchMetrics(NamedTuple):
    """Metrics of one batch of requests.

    >>> from torchserve_neuron_lstm.bucketing.plan import Bucket, Plan, ProgramCall
    >>> two_calls = Plan((ProgramCall(Bucket(1, 8), (1,)), ProgramCall(Bucket(4, 8), (0, 2))))
    >>> batch = BatchMetrics(requests=2, stats=BatchStats((3, 8, 3), real_timesteps=14, plans=(two_calls,)))
    >>> batch.sequences, batch.padded_timesteps, batch.lengths_text
    (3, 26, '3:2 8:1')
    """

    requests: int
    stats: BatchStats = BatchStats()
    rejected: Mapping[str, int] = MappingProxyType({})
    """Refused requests, by the kind of their RequestError."""
    seconds: float = 0.0
    """Seconds from the requests to the responses, decoding and encoding included."""
    replayed: int = 0
    """Requests of sessions that were applied before, and were answered by the stored response."""
    expired: int = 0
    """Sessions removed because they were idle."""
    by_model: int = 0
    """Sequences that the model itself answered, because it was not lowered, or after a difference."""
    compared: int = 0
    """Answers that the model's own code has computed once more since the batch before."""
    different: int = 0
    """Those of them that differed by more than the tolerance."""
    dropped: int = 0
    """Answers that were chosen for it, but too many waited."""

    @property
    def sequences(self) -> int:
        """Accepted sequences: a request may hold several, and a refused one counts as none."""
        return len(self.stats.lengths)

    @property
    def padded_timesteps(self) -> int:
        """Computed timesteps that were not real."""
        return sum(plan.computed_timesteps for plan in self.stats.plans) - self.stats.real_timesteps

    @property
    def lengths_text(self) -> str:
        """The lengths and how often each occurs, ascending, in the format of the worker's log."""
        return " ".join(f"{length}:{count}" for length, count in sorted(Counter(self.stats.lengths).items()))

    def executions(self, grid: BucketGrid) -> Mapping[str, int]:
        """Count program calls by bucket, heads left out.

        Another shape counts for the smallest bucket that holds it. So an engine with dynamic shapes has no more names
        than the grid has buckets.

        >>> from torchserve_neuron_lstm.bucketing.plan import Bucket, Plan, ProgramCall
        >>> chunked = Plan((ProgramCall(Bucket(2, 3), (1, 0)), ProgramCall(Bucket(1, 4), (1,), start=3)))
        >>> BatchMetrics(requests=2, stats=BatchStats(plans=(chunked,))).executions(BucketGrid((1, 4), (8, 16)))
        {'4x8': 1, '1x8': 1}
        """
        calls = Counter(call.bucket for plan in self.stats.plans for call in plan.calls)
        named: Counter[str] = Counter()
        for bucket, count in calls.items():
            batch, length = grid.smallest_holding(*bucket)
            named[f"{batch}x{length}"] += count
        return dict(named)
