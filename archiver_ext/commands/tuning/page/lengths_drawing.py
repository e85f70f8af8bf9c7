"""Drawing of the observed lengths, and of the padding that each grid computes for them."""

from __future__ import annotations

from collections.abc import Iterator

from ..chart import Bar, Chart, Mark, Panel
from . import svg

_SIDE = 32  # units of the drawing, as all that follows, from top to bottom
_STRIP, _PANEL, _HEAD, _GAP, _AXIS = 110, 190, 50, 34, 50
_FOR_BARS = 0.95  # of a panel's height
_OVERLAP = 0.4  # or else rounding leaves gaps between bars


def draw_lengths(chart: Chart) -> str:
    """Draw all panels of a chart over one axis of lengths."""
    height = _HEAD + _STRIP + len(chart.grids) * (_GAP + _HEAD + _PANEL) + _AXIS
    figures = [f"{panel.title}: {panel.figure}, {panel.detail}" for panel in chart.grids]
    return svg.drawing(
        "lengths",
        "Observed lengths, and the padding of each grid",
        ". ".join([chart.title, *figures, chart.result]).strip(". "),
        height,
        _parts(chart),
    )


def _parts(chart: Chart) -> Iterator[str]:
    bottom = _HEAD + _STRIP
    yield from _panel(chart.sequences, bottom, _STRIP)
    for panel in chart.grids:
        bottom += _GAP + _HEAD + _PANEL
        yield from _panel(panel, bottom, _PANEL)
    for tick in chart.ticks:
        yield svg.line(_x(tick.at), bottom, _x(tick.at), bottom + 5, "axis")
        yield svg.text(_x(tick.at), bottom + 20, tick.label, "middle")
    yield svg.text(_x(0.5), bottom + 42, "timesteps of a sequence (logarithmic)", "middle", "faint")


def _panel(panel: Panel, bottom: float, height: float) -> Iterator[str]:
    top = bottom - height
    heading = top - (28 if panel.edges else 8)
    yield svg.text(_x(0), heading, panel.title, "start", "strong")
    yield svg.text(_x(0.012 * len(panel.title) + 0.01), heading, panel.detail, "start", "faint")
    yield svg.text(_x(1), heading, panel.figure, "end", "strong")
    for bar in panel.bars:
        yield from _bar(bar, bottom, height * _FOR_BARS, plain=not panel.edges)
    for edge in panel.edges:
        yield from _edge(edge, top, bottom)
    yield svg.line(_x(0), bottom, _x(1), bottom, "axis")
    yield svg.upright_text(16, (top + bottom) / 2, "timesteps" if panel.edges else "sequences")


def _bar(bar: Bar, bottom: float, height: float, *, plain: bool) -> Iterator[str]:
    """A bar with its padding above, and a tooltip."""
    lengths = f"{bar.first}" if bar.first == bar.last else f"{bar.first} to {bar.last}"
    share = 100 * bar.padded / (bar.useful + bar.padded)
    label = f"{lengths} timesteps: {bar.sequences:,} sequences" + (f", {share:.1f} % padding" if bar.padded else "")
    wide = (bar.right - bar.left) * (svg.WIDTH - 2 * _SIDE) + _OVERLAP
    for share, below, kind in ((bar.useful, 0.0, "all" if plain else "useful"), (bar.padded, bar.useful, "padded")):
        if share:
            yield svg.rectangle(_x(bar.left), bottom - (below + share) * height, wide, share * height, kind, label)


def _edge(edge: Mark, top: float, bottom: float) -> Iterator[str]:
    yield svg.line(_x(edge.at), top, _x(edge.at), bottom, "edge")
    if edge.label:
        yield svg.text(_x(edge.at), top - 6, edge.label, "end" if edge.at > 0.99 else "middle")


def _x(at: float) -> float:
    return _SIDE + at * (svg.WIDTH - 2 * _SIDE)
