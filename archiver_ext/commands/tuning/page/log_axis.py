"""Logarithmic axis of a chart, with round numbers for its ticks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10

_DIGITS = (1, 2, 5)
_MOST_TICKS = 9


@dataclass(frozen=True)
class LogAxis:
    """Mapping from positive values to positions between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float) -> LogAxis:
        """Return an axis that holds all values, with a little room on both sides."""
        found = sorted(values)
        return cls(found[0] / 1.25, found[-1] * 1.25, start, end)

    def at(self, value: float) -> float:
        """Return the position of a value."""
        share = log10(value / self.low) / log10(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> tuple[float, ...]:
        """Return round numbers within the axis: 1, 2, 5, 10, ..., or powers of ten where those are too many.

        >>> LogAxis(0.3, 7, 0, 1).ticks()
        (0.5, 1.0, 2.0, 5.0)
        """
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        found = tuple(
            value
            for power in powers
            for value in (float(f"{digit}e{power}") for digit in _DIGITS)
            if self.low <= value <= self.high
        )
        if len(found) <= _MOST_TICKS:
            return found
        return tuple(value for value in found if f"{value:e}".startswith("1.0"))
