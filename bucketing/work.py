"""Estimated work of sequences, before they are planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from .cost import CostModel


@dataclass(frozen=True)
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

    cost: CostModel
    rows: int
    """Sequences of one call at most."""
    steps: int
    """Timesteps of one call at most."""
    _call_ms: float = field(init=False, repr=False)
    """The most that a call takes apart from its timesteps."""
    _step_ms: float = field(init=False, repr=False)
    """The most that a timestep takes, of a call of any number of rows."""

    def __post_init__(self) -> None:
        lines = [self.cost.line(rows) for rows in range(1, self.rows + 1)]
        object.__setattr__(self, "_call_ms", max(line.call_ms for line in lines))
        object.__setattr__(self, "_step_ms", max(line.step_ms for line in lines))

    def milliseconds(self, lengths: Sequence[int]) -> float:
        """Estimate the time of sequences of these lengths, together."""
        ordered = sorted(lengths, reverse=True)
        groups = (ordered[first : first + self.rows] for first in range(0, len(ordered), self.rows))
        return sum(self._call(len(group), group[0]) for group in groups)

    def at_most(self, sequences: int, timesteps: int) -> float:
        """Return a bound of `milliseconds` for so many sequences with so many timesteps in all."""
        return (sequences + timesteps / self.steps) * self._call_ms + timesteps * self._step_ms

    def _call(self, rows: int, length: int) -> float:
        line = self.cost.line(rows)
        return ceil(length / self.steps) * line.call_ms + length * line.step_ms
