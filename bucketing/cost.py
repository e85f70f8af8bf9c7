"""Cost of running a bucket, interpolated from measurements; integer costs to compare plans.

Plans compare costs as integers. Their sums are exact, so the same batch has the same plan in whichever order costs are
added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import isfinite
from typing import NamedTuple

from .shapes import Bucket, BucketGrid, DynamicShape

_Points = Sequence[tuple[int, float]]


class LinearCost(NamedTuple):
    """Milliseconds of one call for a given number of rows, linear in its timesteps."""

    call_ms: float
    step_ms: float


class CostModel:
    """Measured milliseconds of one call of some buckets; other buckets are interpolated.

    A call has all rows of its bucket, dummy rows included. Between two measurements a cost is interpolated linearly:
    over the timesteps for measured rows, and then over the rows. Beyond the last measurements it is extrapolated
    linearly, but never falls as a bucket grows, and never falls faster than in proportion as it shrinks. A single
    measurement counts as proportional. A larger bucket may be cheaper, unless the costs are `monotonic`.

    >>> cost = CostModel({Bucket(1, 16): 0.5, Bucket(4, 16): 0.9, Bucket(1, 32): 0.75})
    >>> cost.of(Bucket(4, 16))
    0.9
    >>> cost.of(Bucket(1, 24))
    0.625

    Raises `ValueError`: nothing was measured, or a measurement is not a positive number.
    """

    def __init__(self, milliseconds: Mapping[Bucket, float]) -> None:
        if not milliseconds:
            raise ValueError("a cost model needs the measured milliseconds of at least one bucket")
        self.milliseconds = milliseconds
        points: dict[int, list[tuple[int, float]]] = {}
        for bucket, measured in sorted(milliseconds.items()):
            if not (isfinite(measured) and measured > 0):
                raise ValueError(
                    f"the cost of bucket {bucket.batch} x {bucket.length} must be a positive number of milliseconds, "
                    f"got {measured}"
                )
            points.setdefault(bucket.batch, []).append((bucket.length, measured))
        self.batches = tuple(points)
        """Numbers of rows that were measured, ascending."""
        self._measured = tuple(points.items())
        """For each measured number of rows, ascending: (timesteps, milliseconds), ascending."""
        self._lines = tuple((batch, _fit(own)) for batch, own in points.items())

    def of(self, bucket: Bucket) -> float:
        """Return the milliseconds of one call of `bucket`, always positive."""
        measured = self.milliseconds.get(bucket)
        if measured is not None:
            return measured
        return _interpolate([(batch, _interpolate(own, bucket.length)) for batch, own in self._measured], bucket.batch)

    def line(self, batch: int) -> LinearCost:
        """Return the cost of a call of `batch` rows, linear in its timesteps.

        Neither part is negative, nor are both 0. For measured rows it is the least-squares fit of relative errors,
        otherwise an interpolation between neighbours.

        >>> CostModel({Bucket(4, 8): 1.5, Bucket(4, 24): 2.5}).line(4)
        LinearCost(call_ms=1.0, step_ms=0.0625)
        """
        return LinearCost(
            _interpolate([(rows, line.call_ms) for rows, line in self._lines], batch),
            _interpolate([(rows, line.step_ms) for rows, line in self._lines], batch),
        )

    def monotonic(self) -> CostModel:
        """Return the costs in which no bucket costs more than a larger measured one, of as many rows and timesteps.

        No program computes more for fewer of them, and other work on a machine only makes calls longer.

        >>> cost = CostModel({Bucket(1, 32): 0.62, Bucket(8, 32): 0.2, Bucket(8, 64): 0.4}).monotonic()
        >>> cost.of(Bucket(1, 32)), cost.of(Bucket(8, 64))
        (0.2, 0.4)
        """
        return CostModel(
            {
                bucket: min(
                    milliseconds
                    for larger, milliseconds in self.milliseconds.items()
                    if larger.batch >= bucket.batch and larger.length >= bucket.length
                )
                for bucket in self.milliseconds
            }
        )

    @classmethod
    def proportional(cls, shapes: BucketGrid | DynamicShape) -> CostModel:
        """Return an estimate for unmeasured shapes: 0.1 ms for a call, 0.002 ms for each of its B x T cells.

        >>> CostModel.proportional(BucketGrid(batches=(1, 4), lengths=(50,))).of(Bucket(4, 50))
        0.5
        >>> round(CostModel.proportional(DynamicShape(batch=8, length=100)).of(Bucket(4, 50)), 9)
        0.5
        """
        if isinstance(shapes, DynamicShape):
            corners = product(sorted({1, 2, shapes.batch}), sorted({1, 2, shapes.length}))
            return cls({Bucket(*corner): _estimate(*corner) for corner in corners})
        return cls({bucket: _estimate(*bucket) for bucket in shapes.buckets})


def _estimate(batch: int, length: int) -> float:
    return 0.1 + 0.002 * batch * length


def _interpolate(points: _Points, at: int) -> float:
    """Evaluate the line through the two neighbours of `at`, see `CostModel`; values are not negative."""
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
    """Fit the line with the least sum of squared relative errors, among those that are nowhere negative.

    The errors are relative because the noise of a long run exceeds the whole overhead of a call.
    """
    weights = [1 / (value * value) for _, value in points]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, points)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, points)) / total
    around = [(weight, x - mean_x, y - mean_y) for weight, (x, y) in zip(weights, points)]
    spread = sum(weight * dx * dx for weight, dx, _ in around)
    slope = sum(weight * dx * dy for weight, dx, dy in around) / spread if len(points) > 1 else mean_y / mean_x
    if slope <= 0:
        return LinearCost(mean_y, 0.0)
    if mean_y >= slope * mean_x:
        return LinearCost(mean_y - slope * mean_x, slope)
    squares = sum(weight * x * x for weight, (x, _) in zip(weights, points))
    return LinearCost(0.0, sum(weight * x * y for weight, (x, y) in zip(weights, points)) / squares)


NANOSECONDS = 10**6
"""Per millisecond; at least 1 for a measured bucket."""
PICOSECONDS = 10**9
"""Per millisecond: a timestep of a small model takes a few hundred nanoseconds."""
COST_UNIT = 1 << 40
"""One unit of time as an integer cost: more than any plan's sum of B x T."""


def integer_cost(milliseconds: float, cells: int, per_ms: int, least: int = 0) -> int:
    """Return one integer that orders plans by time, then by computed timesteps (`cells`).

    Sums are exact. The time is rounded to `per_ms` units per millisecond, to `least` units or more.

    >>> divmod(integer_cost(0.25, cells=64, per_ms=NANOSECONDS), COST_UNIT)
    (250000, 64)
    """
    return max(least, round(milliseconds * per_ms)) * COST_UNIT + cells


def bucket_costs(cost: CostModel, buckets: Iterable[Bucket]) -> dict[Bucket, int]:
    """Return the integer cost of each bucket, in nanoseconds."""
    return {
        bucket: integer_cost(cost.of(bucket), bucket.batch * bucket.length, NANOSECONDS, least=1) for bucket in buckets
    }


class IntegerCost(NamedTuple):
    """A call's `LinearCost` as integer costs, in picoseconds: `call`, and `step` for each timestep."""

    call: int
    step: int


def integer_costs(cost: CostModel, batch: int) -> tuple[IntegerCost, ...]:
    """Return the integer costs of calls of 0 to `batch` rows, so that rows are indices."""
    costs = [IntegerCost(0, 0)]
    for rows in range(1, batch + 1):
        call_ms, step_ms = cost.line(rows)
        costs.append(IntegerCost(integer_cost(call_ms, 0, PICOSECONDS), integer_cost(step_ms, rows, PICOSECONDS)))
    return tuple(costs)
