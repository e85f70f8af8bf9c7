"""Work of planned batches, for an engine that pads a call to its longest sequence.

It depends on the sequences that share a call. So batches are drawn from the observed lengths, and planned as the
archive plans them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ....bucketing.bucket_lengths import Histogram
from ....bucketing.planner import Planner

_BATCHES = 32


@dataclass(frozen=True)
class PlannedWork:
    """Work of an archive for full batches of the observed lengths."""

    computed_per_useful: float
    """Computed timesteps, padding included, for each real one."""
    milliseconds: float
    """Mean milliseconds of a sequence."""


def plan_sample(histogram: Histogram, planner: Planner, rows: int, longest: int) -> PlannedWork | None:
    """Plan batches of `rows` sequences, drawn from those of up to `longest` timesteps.

    The same arguments draw the same batches. None if there is no such sequence.
    """
    served = {length: number for length, number in sorted(histogram.items()) if length <= longest and number}
    if not served:
        return None
    generator = random.Random(0)  # noqa: S311 - a sample, not a secret
    batches = [generator.choices(list(served), list(served.values()), k=rows) for _ in range(_BATCHES)]
    plans = [planner.plan(lengths) for lengths in batches]
    useful = sum(map(sum, batches))
    return PlannedWork(
        computed_per_useful=sum(plan.computed_timesteps for plan in plans) / useful,
        milliseconds=sum(plan.milliseconds(planner.cost) for plan in plans) / (rows * _BATCHES),
    )
