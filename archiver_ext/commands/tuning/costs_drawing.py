"""Drawing of the measured milliseconds of a call, over its timesteps: a line for each number of rows.

Both axes are logarithmic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from ....bucketing.shapes import Bucket
from . import svg
from .proposal import counted

_LEFT, _RIGHT, _TOP, _PLOT, _AXIS = 70, 100, 30, 280, 56
_COLOURS = 6
_LINE = 16  # least distance of two labels

Series = tuple[int, Sequence[tuple[int, float]]]
"""A number of rows, and the milliseconds for ascending timesteps."""


def draw_costs(costs: Mapping[Bucket, float], batches: Sequence[int]) -> str:
    """Draw the costs for some of the numbers of rows, as many as there are colours."""
    series = _series(costs, batches)
    longest = series[-1][1][-1]
    return svg.drawing(
        "costs",
        "Milliseconds of a call, by its timesteps and rows",
        f"Measured calls of {', '.join(str(rows) for rows, _ in series)} rows. The largest, of "
        f"{series[-1][0]} rows by {longest[0]} timesteps, takes {milliseconds(longest[1])} ms.",
        _TOP + _PLOT + _AXIS,
        _parts(series),
    )


def milliseconds(value: float) -> str:
    """Format milliseconds with three digits.

    >>> milliseconds(0.012345), milliseconds(12.345), milliseconds(1234.5)
    ('0.0123', '12.3', '1,234')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _series(costs: Mapping[Bucket, float], batches: Sequence[int]) -> list[Series]:
    measured = sorted({bucket.batch for bucket in costs})
    rows = [batch for batch in batches if batch in measured] or measured
    spread = sorted({rows[round(index * (len(rows) - 1) / (_COLOURS - 1))] for index in range(_COLOURS)})
    return [(batch, sorted((own.length, ms) for own, ms in costs.items() if own.batch == batch)) for batch in spread]


def _parts(series: Sequence[Series]) -> Iterator[str]:
    points = [point for _, own in series for point in own]
    across = _LogAxis.over((length for length, _ in points), _LEFT, svg.WIDTH - _RIGHT)
    up = _LogAxis.over((ms for _, ms in points), _TOP + _PLOT, _TOP)
    yield from _axes(across, up, sorted({length for length, _ in points}))
    for index, (rows, own) in enumerate(series):
        places = [(across.at(length), up.at(ms)) for length, ms in own]
        yield svg.polyline(places, f"line call{index}")
        for (x, y), (length, ms) in zip(places, own, strict=True):
            label = f"{counted(rows, 'row')} x {counted(length, 'timestep')}: {milliseconds(ms)} ms"
            yield svg.dot(x, y, f"call{index}", label)
    ends = [(up.at(own[-1][1]), counted(rows, "row"), across.at(own[-1][0])) for rows, own in series]
    for y, (label, x) in _apart(ends):
        yield svg.text(x + 12, y + 4, label)


def _axes(across: _LogAxis, up: _LogAxis, lengths: Sequence[int]) -> Iterator[str]:
    bottom = up.start
    for value in up.ticks():
        yield svg.line(across.start, up.at(value), across.end, up.at(value), "grid")
        yield svg.text(across.start - 10, up.at(value) + 4, f"{value:g}", "end")
    free = float("inf")
    for length in reversed(lengths):  # the longest has its label first
        x = across.at(length)
        yield svg.line(x, bottom, x, bottom + 5, "axis")
        if free - x > 12 + 8 * len(str(length)):
            yield svg.text(x, bottom + 20, str(length), "middle")
            free = x
    yield svg.line(across.start, bottom, across.end, bottom, "axis")
    yield svg.text((across.start + across.end) / 2, bottom + 44, "timesteps of a call (logarithmic)", "middle", "faint")
    yield svg.upright_text(18, (up.start + up.end) / 2, "milliseconds of a call (logarithmic)")


def _apart(ends: Sequence[tuple[float, str, float]]) -> Iterator[tuple[float, tuple[str, float]]]:
    """Move labels up where they would overlap, the lowest first."""
    free = float("inf")
    for y, label, x in sorted(ends, reverse=True):
        free = min(y, free - _LINE)
        yield free, (label, x)


_DIGITS = (1, 2, 5)
_MOST_TICKS = 9


@dataclass(frozen=True)
class _LogAxis:
    """Mapping from positive values to positions between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float) -> _LogAxis:
        """Return an axis that holds all values, with a little room on both sides."""
        found = sorted(values)
        return cls(found[0] / 1.25, found[-1] * 1.25, start, end)

    def at(self, value: float) -> float:
        """Return the position of a value."""
        share = log10(value / self.low) / log10(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> tuple[float, ...]:
        """Return round numbers within the axis: 1, 2, 5, 10, ..., or powers of ten where those are too many.

        >>> _LogAxis(0.3, 7, 0, 1).ticks()
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
