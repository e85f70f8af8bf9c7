"""Ranks of plans, and every way to divide a batch, for comparison with the planners."""

from collections.abc import Iterator, Sequence

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.shapes import Bucket

Value = tuple[int, int]
"""Rank of a plan: its cost as a whole number, then computed timesteps."""


def value_of_buckets(buckets: Sequence[Bucket], cost: CostModel) -> Value:
    """Rank calls in these buckets together, by nanoseconds."""
    nanoseconds = sum(round(cost.of(bucket) * 1e6) for bucket in buckets)
    return nanoseconds, sum(bucket.batch * bucket.length for bucket in buckets)


def value_of_calls(calls: Sequence[tuple[int, int]], cost: CostModel) -> Value:
    """Rank calls of these rows and timesteps together, by picoseconds."""
    picoseconds = sum(
        round(line.call_ms * 1e9) + steps * round(line.step_ms * 1e9)
        for line, (_, steps) in zip([cost.line(rows) for rows, _ in calls], calls, strict=True)
    )
    return picoseconds, sum(rows * steps for rows, steps in calls)


def planned_buckets(plan: Plan, cost: CostModel) -> Value:
    return value_of_buckets([run.bucket for run in plan.calls], cost)


def planned_calls(plan: Plan, cost: CostModel) -> Value:
    return value_of_calls([run.bucket for run in plan.calls], cost)


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    """Every way to divide rows into groups, neighbours or not."""
    if not rows:
        yield []
        return
    for smaller in partitions(rows[1:]):
        yield [[rows[0]], *smaller]
        for index, group in enumerate(smaller):
            yield [*smaller[:index], [rows[0], *group], *smaller[index + 1 :]]
