"""Drawing of the observed lengths, and of the padding that each grid computes for them.

The axis of lengths is logarithmic, shifted by a few timesteps. A bar covers the sequences of some neighbouring lengths.
Its area, not its height, is proportional to their timesteps, real ones below and padding above. A panel has coordinates
from 0 to 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, exp, floor, log
from typing import NamedTuple

from ....bucketing.bucket_lengths import Histogram
from .proposal import Proposal, counted, padding_percent, result, summary, timesteps
from .target import TimePadding

_WIDTH = 1000
"""Width of every drawing, in its own units: about a pixel on a wide screen."""
_SIDE = 32  # units of the drawing, as all that follows, from top to bottom
_PANEL, _HEAD, _GAP, _AXIS = 190, 50, 34, 50
_FOR_BARS = 0.95  # of a panel's height
_OVERLAP = 0.4  # or else rounding leaves gaps between bars


def draw_lengths(proposal: Proposal) -> str:
    """Draw what is computed with each grid over one axis of lengths."""
    panels = make_panels(proposal)
    height = len(panels) * (_GAP + _HEAD + _PANEL) + _AXIS
    figures = [f"{panel.title}: {panel.figure}, {panel.detail}" for panel in panels]
    description = ". ".join([summary(proposal), *figures, result(proposal)]).strip(". ")
    parts = "\n".join(_parts(panels, make_ticks(proposal)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-labelledby="t d">\n'
        f'<title id="t">Padding of each grid</title>\n<desc id="d">{escape(description)}</desc>\n{parts}\n</svg>'
    )


def _parts(panels: Sequence[Panel], ticks: Sequence[_Mark]) -> Iterator[str]:
    bottom = 0
    for panel in panels:
        bottom += _GAP + _HEAD + _PANEL
        yield from _panel(panel, bottom)
    for tick in ticks:
        yield _line(_x(tick.at), bottom, _x(tick.at), bottom + 5, "axis")
        yield _text(_x(tick.at), bottom + 20, tick.label, "middle")
    yield _text(_x(0.5), bottom + 42, "timesteps of a sequence (logarithmic)", "middle", "faint")


def _panel(panel: Panel, bottom: float) -> Iterator[str]:
    top = bottom - _PANEL
    heading = top - 28
    yield _text(_x(0), heading, panel.title, "start", "strong")
    yield _text(_x(0.012 * len(panel.title) + 0.01), heading, panel.detail, "start", "faint")
    yield _text(_x(1), heading, panel.figure, "end", "strong")
    for bar in panel.bars:
        yield from _bar(bar, bottom, _PANEL * _FOR_BARS)
    for edge in panel.edges:
        yield _line(_x(edge.at), top, _x(edge.at), bottom, "edge")
        if edge.label:
            yield _text(_x(edge.at), top - 6, edge.label, "end" if edge.at > 0.99 else "middle")
    yield _line(_x(0), bottom, _x(1), bottom, "axis")


def _bar(bar: _Bar, bottom: float, height: float) -> Iterator[str]:
    lengths = f"{bar.first}" if bar.first == bar.last else f"{bar.first} to {bar.last}"
    share = 100 * bar.padded / (bar.useful + bar.padded)
    label = f"{lengths} timesteps: {bar.sequences:,} sequences" + (f", {share:.1f} % padding" if bar.padded else "")
    wide = (bar.right - bar.left) * (_WIDTH - 2 * _SIDE) + _OVERLAP
    for share, below, kind in ((bar.useful, 0.0, "useful"), (bar.padded, bar.useful, "padded")):
        if share:
            place = f'x="{_x(bar.left):.2f}" y="{bottom - (below + share) * height:.2f}"'
            size = f'width="{wide:.2f}" height="{share * height:.2f}"'
            yield f'<rect class="{kind}" {place} {size}><title>{escape(label)}</title></rect>'


def _x(at: float) -> float:
    return _SIDE + at * (_WIDTH - 2 * _SIDE)


_NARROWEST = 1 / 70
_CLOSEST_TICKS = 0.02
_CLOSEST_EDGES = 0.016
_FEWEST_TICKS = 4
_STEPS = tuple(digit * 10**power for power in range(10) for digit in (1, 2, 5))
_SHIFT = 8  # timesteps: below this, lengths are nearly evenly spaced


class _Bar(NamedTuple):
    """A bar for the sequences of the lengths from `first` to `last`."""

    left: float
    right: float
    useful: float
    """Height for the real timesteps."""
    padded: float
    first: int
    last: int
    sequences: int


class _Mark(NamedTuple):
    """A length on the axis; without a label where that would overlap the next one."""

    at: float
    label: str


class Panel(NamedTuple):
    """One histogram."""

    title: str
    detail: str
    figure: str
    """Summary in one number."""
    bars: tuple[_Bar, ...]
    edges: tuple[_Mark, ...]


class _Axis(NamedTuple):
    shortest: float
    longest: float

    def at(self, length: float) -> float:
        low, high = log(self.shortest + _SHIFT), log(self.longest + _SHIFT)
        return (log(length + _SHIFT) - low) / (high - low)

    def length(self, at: float) -> float:
        low, high = log(self.shortest + _SHIFT), log(self.longest + _SHIFT)
        return exp(low + at * (high - low)) - _SHIFT


def _axis(proposal: Proposal) -> _Axis:
    lengths = [*proposal.histogram, *(length for grid in proposal.grids for length in grid.lengths)]
    return _Axis(min(lengths) - 0.5, max(lengths) + 0.5)


def make_panels(proposal: Proposal) -> tuple[Panel, ...]:
    """Make the panel of each grid, all at the same scale."""
    axis = _axis(proposal)
    grids = [
        Panel(
            title=grid.name.capitalize(),
            detail=f"{counted(len(grid.lengths), 'length')}, {timesteps(grid.computed)} timesteps computed",
            figure=f"{padding_percent(grid.ratio)} padding" if grid.ratio is not None else "padding by batch",
            bars=tuple(_bars(proposal.histogram, axis, grid.counted_up_to, proposal.padding)),
            edges=_spread([(axis.at(length + 0.5), length) for length in grid.lengths], _CLOSEST_EDGES),
        )
        for grid in proposal.distinct_grids
    ]
    highest = max((bar.useful + bar.padded for panel in grids for bar in panel.bars), default=1.0)
    return tuple(
        panel._replace(bars=tuple(b._replace(useful=b.useful / highest, padded=b.padded / highest) for b in panel.bars))
        for panel in grids
    )


def make_ticks(proposal: Proposal) -> list[_Mark]:
    """Make the labels of the axis."""
    axis = _axis(proposal)
    lengths = _round_lengths(ceil(axis.shortest), floor(axis.longest))
    return [tick for tick in _spread([(axis.at(length), length) for length in lengths], _CLOSEST_TICKS) if tick.label]


def _bars(histogram: Histogram, axis: _Axis, edges: Sequence[int], padding: TimePadding) -> Iterator[_Bar]:
    """Bars over lengths that share a bucket, not too narrow to see."""
    lengths = sorted(histogram)
    for first, last, edge in _segments(lengths, axis, edges):
        within = lengths[bisect_left(lengths, first) : bisect_right(lengths, last)]
        sequences = sum(histogram[length] for length in within)
        useful = sum(length * histogram[length] for length in within)
        left, right = axis.at(first - 0.5), axis.at(last + 0.5)
        padded = edge * sequences - useful if padding == "bucket" else 0
        if sequences:
            yield _Bar(left, right, useful / (right - left), padded / (right - left), first, last, sequences)


def _segments(lengths: Sequence[int], axis: _Axis, edges: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first length, last length, the edge that holds them), ascending. What no edge holds is left out."""
    first = lengths[0]
    for edge in edges:
        while first <= edge:
            last = ceil(axis.length(axis.at(first - 0.5) + _NARROWEST) - 0.5)
            last = min(edge, max(first, last))
            yield first, last, edge
            first = last + 1


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


def _spread(places: Sequence[tuple[float, int]], closest: float) -> tuple[_Mark, ...]:
    """Labels for as many as have room, the last one always."""
    marks: list[_Mark] = []
    free = 2.0
    for at, length in reversed(places):
        has_room = free - at >= closest * (1 + 0.25 * len(str(length)))
        marks.append(_Mark(at, str(length) if has_room else ""))
        free = at if has_room else free
    return tuple(reversed(marks))


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Return a line of text with its baseline at `y`; `anchor` is start, middle or end."""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape(words)}</text>'
