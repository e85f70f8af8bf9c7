"""What one batch came to, in numbers. Made of plain values; who is told of it is another file's business."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..bucketing.grid import BucketGrid
from .work import Work


@dataclass(frozen=True)
class Counts:
    """One batch of rows.

    >>> from torchserve_neuron_lstm.bucketing.plan import Bucket, Plan, Run
    >>> two_runs = Plan((Run(Bucket(1, 8), (1,)), Run(Bucket(4, 8), (0, 2))))
    >>> counts = Counts(requests=2, work=Work((3, 8, 3), useful_timesteps=14, plans=(two_runs,)))
    >>> counts.sequences, counts.padded_timesteps, counts.lengths_text
    (3, 26, '3:2 8:1')
    """

    requests: int
    work: Work = field(default_factory=Work)
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Requests without an answer, by the kind of their RequestError."""
    seconds: float = 0.0
    """From the rows to the responses: decoding and encoding included."""
    repeated: int = 0
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
        >>> stair = Plan((Run(Bucket(2, 3), (1, 0)), Run(Bucket(1, 4), (1,), start=3)))
        >>> Counts(requests=2, work=Work(plans=(stair,))).executions(BucketGrid((1, 4), (8, 16)))
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
