"""Chart of a proposal, in coordinates from 0 to 1.

The axis of lengths is logarithmic, shifted by a few timesteps. A bar covers the sequences of some neighbouring lengths.
Its area, not its height, is proportional to their number in the first panel, and in the panel of each grid to their
timesteps, real ones below and padding above.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from typing import NamedTuple

from ....bucketing.bucket_lengths import Histogram
from .grid_evaluation import GridEvaluation
from .proposal import Proposal
from .text import counted, padding_percent, result, summary, timesteps
from .time_padding import TimePadding

_NARROWEST = 1 / 70
_CLOSEST_TICKS = 0.02
_CLOSEST_EDGES = 0.016
_FEWEST_TICKS = 4
_STEPS = tuple(digit * 10**power for power in range(10) for digit in (1, 2, 5))
_SHIFT = 8  # timesteps: below this, lengths are nearly evenly spaced


class Bar(NamedTuple):
    """A bar for the sequences of the lengths from `first` to `last`."""

    left: float
    right: float
    useful: float
    """Height for the sequences in the first panel, for their real timesteps in the others."""
    padded: float
    first: int
    last: int
    sequences: int


class Mark(NamedTuple):
    """A length on the axis; without a label where that would overlap the next one."""

    at: float
    length: int
    label: str


@dataclass(frozen=True)
class Panel:
    """One histogram."""

    title: str
    detail: str
    figure: str
    """Summary in one number; may be empty."""
    bars: tuple[Bar, ...]
    edges: tuple[Mark, ...]


@dataclass(frozen=True)
class Chart:
    """One panel for the sequences, and one for each grid, all grids at the same scale."""

    title: str
    result: str
    """Summary of the savings; empty without a current grid."""
    sequences: Panel
    grids: tuple[Panel, ...]
    ticks: tuple[Mark, ...]


@dataclass(frozen=True)
class _Axis:
    """Mapping between lengths and positions."""

    shortest: float
    longest: float

    def at(self, length: float) -> float:
        low, high = log(self.shortest + _SHIFT), log(self.longest + _SHIFT)
        return (log(length + _SHIFT) - low) / (high - low)

    def length(self, at: float) -> float:
        low, high = log(self.shortest + _SHIFT), log(self.longest + _SHIFT)
        return exp(low + at * (high - low)) - _SHIFT


def make_chart(proposal: Proposal) -> Chart:
    """Make the chart of a proposal."""
    lengths = [*proposal.histogram, *(length for grid in proposal.grids for length in grid.lengths)]
    axis = _Axis(min(lengths) - 0.5, max(lengths) + 0.5)
    sequences = Panel("Sequences", "by length", "", tuple(_bars(proposal.histogram, axis, (), proposal.padding)), ())
    grids = [_grid_panel(proposal, axis, grid) for grid in proposal.distinct_grids]
    highest = max((bar.useful + bar.padded for panel in grids for bar in panel.bars), default=1.0)
    marked = _round_lengths(min(lengths), max(lengths))
    ticks = _spread([(axis.at(length), length) for length in marked], _CLOSEST_TICKS)
    return Chart(
        title=summary(proposal),
        result=result(proposal),
        sequences=_scaled(sequences, max(bar.useful for bar in sequences.bars)),
        grids=tuple(_scaled(panel, highest) for panel in grids),
        ticks=tuple(tick for tick in ticks if tick.label),
    )


def _grid_panel(proposal: Proposal, axis: _Axis, grid: GridEvaluation) -> Panel:
    return Panel(
        title=grid.name.capitalize(),
        detail=f"{counted(len(grid.lengths), 'length')}, {timesteps(grid.computed)} timesteps computed",
        figure=f"{padding_percent(grid.ratio)} padding" if grid.ratio is not None else "padding by batch",
        bars=tuple(_bars(proposal.histogram, axis, grid.counted_up_to, proposal.padding)),
        edges=_spread([(axis.at(length + 0.5), length) for length in grid.lengths], _CLOSEST_EDGES),
    )


def _bars(histogram: Histogram, axis: _Axis, edges: Sequence[int], padding: TimePadding) -> Iterator[Bar]:
    """Bars over lengths that share a bucket, not too narrow to see; without bucket lengths, of sequences."""
    lengths = sorted(histogram)
    for first, last, edge in _segments(lengths, axis, edges or lengths[-1:]):
        within = lengths[bisect_left(lengths, first) : bisect_right(lengths, last)]
        sequences = sum(histogram[length] for length in within)
        useful = sum(length * histogram[length] for length in within)
        left, right = axis.at(first - 0.5), axis.at(last + 0.5)
        padded = edge * sequences - useful if padding == "bucket" else 0
        heights = (useful, padded) if edges else (sequences, 0)
        if sequences:
            yield Bar(left, right, heights[0] / (right - left), heights[1] / (right - left), first, last, sequences)


def _segments(lengths: Sequence[int], axis: _Axis, edges: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first length, last length, the edge that holds them), ascending. What no edge holds is left out."""
    first = lengths[0]
    for edge in edges:
        while first <= edge:
            last = ceil(axis.length(axis.at(first - 0.5) + _NARROWEST) - 0.5)
            last = min(edge, max(first, last))
            yield first, last, edge
            first = last + 1


def _scaled(panel: Panel, highest: float) -> Panel:
    bars = (bar._replace(useful=bar.useful / highest, padded=bar.padded / highest) for bar in panel.bars)
    return replace(panel, bars=tuple(bars))


def _round_lengths(shortest: int, longest: int) -> list[int]:
    """Choose lengths for the axis: 1, 2, 5, 10, 20, ..., or equally spaced ones where these are too few.

    >>> _round_lengths(3, 110)
    [5, 10, 20, 50, 100]
    >>> _round_lengths(990, 1030)
    [990, 1000, 1010, 1020, 1030]
    """
    spaced = [step for step in _STEPS if shortest <= step <= longest]
    if len(spaced) >= _FEWEST_TICKS:
        return spaced
    step = next(step for step in _STEPS if step * _FEWEST_TICKS >= longest - shortest)
    return list(range(ceil(shortest / step) * step, longest + 1, step))


def _spread(places: Sequence[tuple[float, int]], closest: float) -> tuple[Mark, ...]:
    """Labels for as many as have room, the last one always."""
    marks: list[Mark] = []
    free = 2.0
    for at, length in reversed(places):
        has_room = free - at >= closest * (1 + 0.25 * len(str(length)))
        marks.append(Mark(at, length, str(length) if has_room else ""))
        free = at if has_room else free
    return tuple(reversed(marks))
