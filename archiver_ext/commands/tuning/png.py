"""Chart of a proposal as a PNG file, drawn with matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import PackagingError
from .chart import Chart, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _FAINT, _USEFUL, _PADDED = "#1f2933", "#7b8794", "#3d6f9e", "#f0a35e"
_WIDTH, _SIDE = 10.0, 0.5  # inches, as all that follows, from top to bottom
_TOP, _STRIP, _GAP, _PANEL, _BOTTOM = 1.35, 0.95, 0.85, 2.0, 0.75
_KEY = ((_USEFUL, "real timesteps"), (_PADDED, "padding"))


def require_matplotlib() -> None:
    """Check that matplotlib is installed.

    Raises:
        PackagingError: it is not; says how to install it.
    """
    if find_spec("matplotlib") is None:
        raise PackagingError(
            "a .png needs matplotlib: pip install 'torchserve-neuron-lstm[plot]', or choose .html, which needs nothing"
        )


def write_png(chart: Chart, file: Path) -> None:
    """Draw the chart into a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = _TOP + _STRIP + len(chart.grids) * (_GAP + _PANEL) + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    sheet = figure.add_axes((0, 0, 1, 1))  # texts are placed in inches from the upper left corner
    sheet.set(xlim=(0, _WIDTH), ylim=(height, 0))
    sheet.axis("off")
    _head(sheet, chart)
    top = _TOP
    for panel, inches in ((chart.sequences, _STRIP), *((panel, _PANEL) for panel in chart.grids)):
        box = (_SIDE / _WIDTH, 1 - (top + inches) / height, 1 - 2 * _SIDE / _WIDTH, inches / height)
        axes = figure.add_axes(box)
        _bars(axes, panel)
        _titles(sheet, panel, top)
        top += inches + _GAP
    axes.set_xticks([tick.at for tick in chart.ticks], [tick.label for tick in chart.ticks], color=_INK, size=9)
    axes.set_xlabel("timesteps of a sequence (logarithmic)", color=_INK, size=9)
    figure.savefig(file, dpi=144)


def _head(sheet: Axes, chart: Chart) -> None:
    sheet.text(_SIDE, 0.38, chart.title, size=13, weight="bold", color=_INK, va="center")
    sheet.text(_SIDE, 0.66, chart.result, size=10.5, color=_INK, va="center")
    at = _WIDTH - _SIDE
    for color, text in reversed(_KEY):
        sheet.text(at, 0.66, text, size=9, color=_INK, ha="right", va="center")
        at -= 0.15 + 0.066 * len(text)
        sheet.text(at, 0.66, "\u25a0", size=13, color=color, ha="center", va="center")
        at -= 0.25


def _titles(sheet: Axes, panel: Panel, top: float) -> None:
    line = top - (0.36 if panel.edges else 0.14)
    sheet.text(_SIDE, line, panel.title, size=10.5, weight="bold", color=_INK, va="center")
    sheet.text(_SIDE + 0.11 * len(panel.title) + 0.1, line, panel.detail, size=9, color=_FAINT, va="center")
    sheet.text(_WIDTH - _SIDE, line, panel.figure, size=10.5, weight="bold", color=_INK, ha="right", va="center")


def _bars(axes: Axes, panel: Panel) -> None:
    for bar in panel.bars:
        width = bar.right - bar.left
        axes.bar(bar.left, bar.useful, width, align="edge", color=_USEFUL if panel.edges else _FAINT, linewidth=0)
        axes.bar(bar.left, bar.padded, width, bottom=bar.useful, align="edge", color=_PADDED, linewidth=0)
    for edge in panel.edges:
        axes.axvline(edge.at, color=_INK, linewidth=0.7, alpha=0.75, clip_on=False)
        side = "right" if edge.at > 0.99 else "center"
        axes.text(edge.at, 1.07, edge.label, size=8, color=_INK, ha=side, va="bottom")
    axes.set(xlim=(0, 1), ylim=(0, 1.05), yticks=[], xticks=[])
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
