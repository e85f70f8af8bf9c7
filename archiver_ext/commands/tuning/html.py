"""Chart of a proposal as a web page: one file with an SVG, in the reader's light or dark colours."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from .chart import Bar, Chart, Mark, Panel
from .proposal import Proposal

_WIDTH, _SIDE = 1000, 20  # units of the drawing, as all that follows, from top to bottom
_STRIP, _PANEL, _HEAD, _GAP, _AXIS = 100, 200, 50, 34, 50
_FOR_BARS = 0.95  # of a panel's height
_OVERLAP = 0.4  # or else rounding leaves gaps between bars

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1f2933; --faint: #7b8794; --paper: #ffffff;
  --useful: #3d6f9e; --padded: #f0a35e }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e4e7eb; --faint: #9aa5b1; --paper: #16191d; --useful: #5b93c7; --padded: #d98a45 }}
}}
body {{ margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }}
h1 {{ font-size: 1.35rem; margin: 0 }}
p {{ margin: .3rem 0 }}
.key {{ display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }}
svg {{ width: 100%; height: auto; margin: 1rem 0; font: 13px system-ui, sans-serif }}
svg rect {{ shape-rendering: crispEdges }}
svg text {{ fill: var(--ink) }}
svg .strong {{ font-size: 15px; font-weight: 600 }}
svg .faint {{ fill: var(--faint) }}
svg line {{ stroke: var(--ink); stroke-width: 1; opacity: .7 }}
svg .axis {{ stroke: var(--faint); opacity: 1 }}
.useful {{ fill: var(--useful); background: var(--useful) }}
.padded {{ fill: var(--padded); background: var(--padded) }}
.all {{ fill: var(--faint) }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ text-align: left; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--faint); vertical-align: top }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{result}</p>
<p><span class="useful key" style="margin-left: 0"></span>real timesteps <span class="padded key"></span>padding.
The axis of lengths is logarithmic; the area of a bar, not its height, shows the number of timesteps.</p>
{drawing}
<table>
<tr><th>grid</th><th>padding</th><th>lengths</th></tr>
{rows}
</table>
</body>
</html>
"""


def html_page(chart: Chart, proposal: Proposal) -> str:
    """Render the page. It needs no other files or scripts."""
    rows = (
        f"<tr><td>{escape(grid.name)}</td><td>{escape(panel.figure)}</td>"
        f"<td>{', '.join(map(str, grid.lengths))}</td></tr>"
        for grid, panel in zip(proposal.grids, chart.grids, strict=True)
    )
    return _PAGE.format(
        title=escape(chart.title),
        result=escape(chart.result),
        drawing="\n".join(_drawing(chart)),
        rows="\n".join(rows),
    )


def _drawing(chart: Chart) -> Iterator[str]:
    height = _HEAD + _STRIP + len(chart.grids) * (_GAP + _HEAD + _PANEL) + _AXIS
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(chart.result or chart.title)}">'
    bottom = _HEAD + _STRIP
    yield from _panel(chart.sequences, bottom, _STRIP)
    for panel in chart.grids:
        bottom += _GAP + _HEAD + _PANEL
        yield from _panel(panel, bottom, _PANEL)
    for tick in chart.ticks:
        yield f'<line class="axis" x1="{_x(tick.at)}" x2="{_x(tick.at)}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield _text(tick.at, bottom + 20, tick.label, "middle")
    yield _text(0.5, bottom + 42, "timesteps of a sequence (logarithmic)", "middle")
    yield "</svg>"


def _panel(panel: Panel, bottom: float, height: float) -> Iterator[str]:
    top = bottom - height
    line = top - (28 if panel.edges else 8)
    yield _text(0, line, panel.title, "start", "strong")
    yield _text(0.012 * len(panel.title) + 0.01, line, panel.detail, "start", "faint")
    yield _text(1, line, panel.figure, "end", "strong")
    for bar in panel.bars:
        yield from _bar(bar, bottom, height * _FOR_BARS, plain=not panel.edges)
    for edge in panel.edges:
        yield from _edge(edge, top, bottom)
    yield f'<line class="axis" x1="{_x(0)}" x2="{_x(1)}" y1="{bottom}" y2="{bottom}"/>'


def _bar(bar: Bar, bottom: float, height: float, *, plain: bool) -> Iterator[str]:
    """A bar with its padding above, and a tooltip."""
    lengths = f"{bar.first}" if bar.first == bar.last else f"{bar.first} to {bar.last}"
    padded = bar.padded / (bar.useful + bar.padded)
    label = f"{lengths} timesteps: {bar.sequences:,} sequences" + ("" if plain else f", {100 * padded:.1f} % padding")
    yield f"<g><title>{label}</title>"
    for share, below, kind in ((bar.useful, 0.0, "all" if plain else "useful"), (bar.padded, bar.useful, "padded")):
        y, tall = bottom - (below + share) * height, share * height
        wide = (bar.right - bar.left) * (_WIDTH - 2 * _SIDE) + _OVERLAP
        yield f'<rect class="{kind}" x="{_x(bar.left)}" y="{y:.2f}" width="{wide:.2f}" height="{tall:.2f}"/>'
    yield "</g>"


def _edge(edge: Mark, top: float, bottom: float) -> Iterator[str]:
    yield f'<line x1="{_x(edge.at)}" x2="{_x(edge.at)}" y1="{top}" y2="{bottom}"/>'
    if edge.label:
        yield _text(edge.at, top - 6, edge.label, "end" if edge.at > 0.99 else "middle")


def _text(at: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{_x(at)}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(at: float) -> str:
    return f"{_SIDE + at * (_WIDTH - 2 * _SIDE):.2f}"
