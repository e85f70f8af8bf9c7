"""What running a bucket costs, from measurements of some.

Plans compare costs as whole numbers. Their sums are exact, so the same batch has the same plan in whichever order costs
are added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from typing import NamedTuple

from .shapes import Bucket, BucketGrid, DynamicShape

_Points = Sequence[tuple[int, float]]


class LinearCost(NamedTuple):
    """Milliseconds of one call for a given number of rows, as a line in its timesteps.

    >>> LinearCost(call_ms=0.5, step_ms=0.25).milliseconds(6)
    2.0
    """

    call_ms: float
    step_ms: float

    def milliseconds(self, steps: int) -> float:
        """What a call of `steps` timesteps costs."""
        return self.call_ms + steps * self.step_ms


@dataclass(frozen=True)
class CostModel:
    """The measured milliseconds of one run of some buckets, however few of their rows are real.

    Between two measurements a cost is on the straight line through them: over the timesteps for measured rows, and
    then over the rows. Beyond the last ones it goes on like that, but never falls as a bucket grows, and never falls
    faster than in proportion as it shrinks. A single measurement counts as proportional. Measurements are taken as
    they are: a larger bucket may be cheaper.

    >>> cost = CostModel({Bucket(1, 16): 0.5, Bucket(4, 16): 0.9, Bucket(1, 32): 0.75})
    >>> cost.of(Bucket(4, 16))
    0.9
    >>> cost.of(Bucket(1, 24))
    0.625

    Raises:
        ValueError: nothing was measured, or a measurement is not a positive number.
    """

    milliseconds: Mapping[Bucket, float]
    _measured: tuple[tuple[int, _Points], ...] = field(init=False, repr=False, compare=False)
    """For each measured number of rows, ascending: (timesteps, milliseconds), ascending."""
    _lines: tuple[tuple[int, LinearCost], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.milliseconds:
            raise ValueError("a cost model needs the measured milliseconds of at least one bucket")
        points: dict[int, list[tuple[int, float]]] = {}
        for bucket, milliseconds in sorted(self.milliseconds.items()):
            if not (isfinite(milliseconds) and milliseconds > 0):
                raise ValueError(
                    f"the cost of bucket {bucket.batch} x {bucket.length} must be a positive number of milliseconds, "
                    f"got {milliseconds}"
                )
            points.setdefault(bucket.batch, []).append((bucket.length, milliseconds))
        object.__setattr__(self, "_measured", tuple(points.items()))
        object.__setattr__(self, "_lines", tuple((batch, _fit(own)) for batch, own in points.items()))

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of rows that were measured, ascending."""
        return tuple(batch for batch, _ in self._measured)

    def of(self, bucket: Bucket) -> float:
        """Milliseconds of one run of `bucket`, always positive."""
        measured = self.milliseconds.get(bucket)
        if measured is not None:
            return measured
        return _between([(batch, _between(own, bucket.length)) for batch, own in self._measured], bucket.batch)

    def line(self, batch: int) -> LinearCost:
        """The cost of a call of `batch` rows as a line in its timesteps: neither part is negative, nor are both 0.

        For measured rows the line with the least squares of relative errors, otherwise one between its neighbours.

        >>> CostModel({Bucket(4, 8): 1.5, Bucket(4, 24): 2.5}).line(4)
        Line(call_ms=1.0, step_ms=0.0625)
        """
        return LinearCost(
            _between([(rows, line.call_ms) for rows, line in self._lines], batch),
            _between([(rows, line.step_ms) for rows, line in self._lines], batch),
        )

    @classmethod
    def proportional(cls, shapes: BucketGrid | DynamicShape) -> CostModel:
        """A stand-in until shapes are measured: 0.1 ms for a call and 0.002 ms for each of its B x T cells.

        >>> CostModel.proportional(BucketGrid(batches=(1, 4), lengths=(50,))).of(Bucket(4, 50))
        0.5
        >>> round(CostModel.proportional(DynamicShape(batch=8, length=100)).of(Bucket(4, 50)), 9)
        0.5
        """
        if isinstance(shapes, DynamicShape):
            corners = product(sorted({1, 2, shapes.batch}), sorted({1, 2, shapes.length}))
            return cls({Bucket(*corner): _stand_in(*corner) for corner in corners})
        return cls({bucket: _stand_in(*bucket) for bucket in shapes.buckets})


def _stand_in(batch: int, length: int) -> float:
    return 0.1 + 0.002 * batch * length


def _between(points: _Points, at: int) -> float:
    """The value at `at` of the line through its two neighbours, see `CostModel`. Values are not negative."""
    if len(points) == 1:
        only, value = points[0]
        return value * at / only
    right = min(max(bisect_left(points, (at,)), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1 : right + 1]
    slope = (y1 - y0) / (x1 - x0)
    if at < x0:
        return max(y0 + max(slope, 0.0) * (at - x0), y0 * at / x0)
    if at > x1:
        return y1 + max(slope, 0.0) * (at - x1)
    return y1 if at == x1 else y0 + slope * (at - x0)


def _fit(points: _Points) -> LinearCost:
    """The line with the least sum of squared relative errors, among those that are nowhere negative.

    Relative, for a long run's noise is larger than all that a call costs.
    """
    weights = [1 / (value * value) for _, value in points]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)) / total
    around = [(weight, x - mean_x, y - mean_y) for weight, (x, y) in zip(weights, points, strict=True)]
    spread = sum(weight * dx * dx for weight, dx, _ in around)
    slope = sum(weight * dx * dy for weight, dx, dy in around) / spread if len(points) > 1 else mean_y / mean_x
    if slope <= 0:
        return LinearCost(mean_y, 0.0)
    if mean_y >= slope * mean_x:
        return LinearCost(mean_y - slope * mean_x, slope)
    squares = sum(weight * x * x for weight, (x, _) in zip(weights, points, strict=True))
    return LinearCost(0.0, sum(weight * x * y for weight, (x, y) in zip(weights, points, strict=True)) / squares)


_UNIT = 1 << 40  # more than any plan's sum of B x T
_PER_MILLISECOND = 10**9  # picoseconds: a step of a small model is a few hundred nanoseconds


class IntegerCost(NamedTuple):
    """A call's `LinearCost` as whole numbers, ordered as plans are: by picoseconds, then by B x T."""

    call: int
    step: int


def integer_cost(line: LinearCost, batch: int) -> IntegerCost:
    """The weight of a call of `batch` rows: `call`, and `step` for each timestep."""
    picoseconds = (round(part * _PER_MILLISECOND) for part in line)
    call, step = (part * _UNIT for part in picoseconds)
    return IntegerCost(call, step + batch)


def integer_costs(cost: CostModel, batch: int) -> tuple[IntegerCost, ...]:
    """The weights of 0 to `batch` rows. Nothing is run with 0 rows; the place is kept so that rows are indices."""
    return (IntegerCost(0, 0), *(integer_cost(cost.line(rows), rows) for rows in range(1, batch + 1)))
