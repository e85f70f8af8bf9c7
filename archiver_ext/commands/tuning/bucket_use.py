"""Use of each bucket length: the sequences that it holds, and the padding that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....bucketing.bucket_lengths import Histogram
from ....bucketing.cost import CostModel
from ....bucketing.shapes import Bucket
from .time_padding import TimePadding


@dataclass(frozen=True)
class BucketUse:
    """Sequences that one bucket length holds."""

    length: int
    sequences: int
    useful: int
    """Real timesteps."""
    padded: int | None
    """Timesteps of padding that are computed for them; None if that depends on the batches."""
    milliseconds: float | None
    """Milliseconds of a full call of the largest batch size; None if nothing was measured."""


def bucket_uses(
    histogram: Histogram, lengths: Sequence[int], padding: TimePadding, costs: Mapping[Bucket, float], rows: int
) -> tuple[BucketUse, ...]:
    """Total the sequences of each bucket length; those that no length holds are left out.

    >>> [(use.sequences, use.padded) for use in bucket_uses({3: 2, 9: 1}, (4, 10), "bucket", {}, rows=8)]
    [(2, 2), (1, 1)]
    """
    model = CostModel(costs) if costs else None
    uses = []
    for below, length in zip((0, *lengths), lengths, strict=False):
        own = {steps: number for steps, number in histogram.items() if below < steps <= length}
        useful = sum(steps * number for steps, number in own.items())
        padded = {"bucket": length * sum(own.values()) - useful, "none": 0, "call": None}[padding]
        milliseconds = None if model is None else model.of(Bucket(rows, length))
        uses.append(BucketUse(length, sum(own.values()), useful, padded, milliseconds))
    return tuple(uses)
