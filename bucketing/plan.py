"""Plans: immutable values made of ints, returned by planners and followed by `execute`; estimates before planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Literal

from .cost import CostModel
from .shapes import Bucket


@dataclass(frozen=True)
class ProgramCall:
    """One call of one program; `rows` are indices of requests in the batch, the longest first.

    `start` is the first timestep that the call computes: 0, except for the later chunks of a chunked plan.
    """

    bucket: Bucket
    rows: tuple[int, ...]
    start: int = 0


@dataclass(frozen=True)
class Plan:
    """All calls that one batch of requests needs, in an order in which they can be made.

    In a plan for `sequence` programs every request is in exactly one call. In a chunked plan the calls of a request
    follow each other without a gap from timestep 0 to its end, and every request is in exactly one head.

    >>> chunks = (ProgramCall(Bucket(2, 3), (1, 0)), ProgramCall(Bucket(1, 4), (1,), start=3))
    >>> plan = Plan(chunks, heads=(ProgramCall(Bucket(2, 1), (1, 0)),))
    >>> plan.computed_timesteps
    10
    """

    calls: tuple[ProgramCall, ...]
    heads: tuple[ProgramCall, ...] = ()
    """Calls of the `head` program, after all of `calls`; their buckets have length 1, and other costs."""

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of a chunked plan, in the order in which its calls take them."""
        return tuple([row for head in self.heads for row in head.rows])

    @property
    def computed_timesteps(self) -> int:
        """B x T summed over the calls: the timesteps that the engine computes, padding included."""
        return sum(call.bucket.batch * call.bucket.length for call in self.calls)

    def milliseconds(self, cost: CostModel) -> float:
        """Sum the costs of the calls. The heads run another program, with other costs."""
        return sum(cost.of(call.bucket) for call in self.calls)


def single_bucket_plan(bucket: Bucket, lengths: Sequence[int], kind: Literal["sequence", "chunk"]) -> Plan:
    """Plan all calls in this bucket: at most B sequences, longer than T only for `kind` "chunk".

    >>> [call.start for call in single_bucket_plan(Bucket(2, 4), [9, 3], "chunk").calls]
    [0, 4, 8]
    """
    rows = tuple(sorted(range(len(lengths)), key=lambda row: -lengths[row]))
    if kind == "sequence":
        return Plan((ProgramCall(bucket, rows),))
    starts = range(0, lengths[rows[0]], bucket.length)
    active = (tuple(row for row in rows if lengths[row] > start) for start in starts)
    calls = tuple(ProgramCall(bucket, own, start) for own, start in zip(active, starts))
    return Plan(calls, (ProgramCall(Bucket(bucket.batch, 1), rows),))


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Return the indices of the lengths, the longest first, equal ones in their order.

    Raises `ValueError`: a length is less than 1.
    """
    rows = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    if rows and lengths[rows[-1]] < 1:
        raise ValueError(f"request {rows[-1]} has {lengths[rows[-1]]} timesteps: an empty sequence cannot be planned")
    return rows


class WorkEstimate:
    """Milliseconds of sequences by the measured costs of calls.

    Sequences are taken in calls of `rows`, the longest first; a call of more than `steps` timesteps counts as several.
    A plan is not slower than that but for what its planner knows better, such as padding.

    >>> from torchserve_neuron_lstm.bucketing.shapes import Bucket
    >>> estimate = WorkEstimate(CostModel({Bucket(4, 8): 1.5, Bucket(4, 24): 2.5}), rows=4, steps=24)
    >>> estimate.milliseconds([24, 8, 8, 8, 8])
    2.875
    >>> estimate.at_most(sequences=5, timesteps=56) >= 2.875
    True
    """

    def __init__(self, cost: CostModel, rows: int, steps: int, alone_below: int = 1, alone_ms: float = 0.0) -> None:
        """Sequences of fewer than `alone_below` timesteps are computed alone, by the model's own code."""
        self.cost, self.rows, self.steps = cost, rows, steps
        self.alone_below, self.alone_ms = alone_below, alone_ms
        lines = [cost.line(count) for count in range(1, rows + 1)]
        self._call_ms = max(line.call_ms for line in lines)
        """The most that a call takes apart from its timesteps."""
        self._step_ms = max(line.step_ms for line in lines)
        """The most that a timestep takes, of a call of any number of rows."""

    def milliseconds(self, lengths: Sequence[int]) -> float:
        """Estimate the time of sequences of these lengths, together."""
        ordered = sorted([length for length in lengths if length >= self.alone_below], reverse=True)
        groups = (ordered[first : first + self.rows] for first in range(0, len(ordered), self.rows))
        alone = (len(lengths) - len(ordered)) * self.alone_ms
        return alone + sum(self._call(len(group), group[0]) for group in groups)

    def at_most(self, sequences: int, timesteps: int) -> float:
        """Return a bound of `milliseconds` for so many sequences with so many timesteps in all."""
        calls = sequences * max(self._call_ms, self.alone_ms) + timesteps / self.steps * self._call_ms
        return calls + timesteps * self._step_ms

    def _call(self, rows: int, length: int) -> float:
        line = self.cost.line(rows)
        return ceil(length / self.steps) * line.call_ms + length * line.step_ms
