"""Elements of an SVG drawing. All words are escaped here, and colours are classes of the page's style."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

WIDTH = 1000
"""Width of every drawing, in its own units: about a pixel on a wide screen."""


def drawing(name: str, title: str, description: str, height: float, parts: Iterable[str]) -> str:
    """Return a drawing with the title and the description that a screen reader reads."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-labelledby="{name}-title {name}-description">\n'
        f'<title id="{name}-title">{escape(title)}</title>\n'
        f'<desc id="{name}-description">{escape(description)}</desc>\n'
        f"{chr(10).join(parts)}\n</svg>"
    )


def rectangle(x: float, y: float, width: float, height: float, kind: str, tooltip: str) -> str:
    """Return a rectangle; `tooltip` appears beside the pointer."""
    size = f'width="{width:.2f}" height="{height:.2f}"'
    return f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" {size}><title>{escape(tooltip)}</title></rect>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line."""
    return f'<line class="{kind}" x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>'


def polyline(points: Iterable[tuple[float, float]], kind: str) -> str:
    """Return a line through points."""
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.2f},{y:.2f}" for x, y in points)}"/>'


def dot(x: float, y: float, kind: str, tooltip: str) -> str:
    """Return a point of a chart; `tooltip` appears beside the pointer."""
    return f'<circle class="{kind}" cx="{x:.2f}" cy="{y:.2f}" r="4"><title>{escape(tooltip)}</title></circle>'


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Return a line of text with its baseline at `y`; `anchor` is start, middle or end."""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape(words)}</text>'


def upright_text(x: float, y: float, words: str) -> str:
    """Return a text that reads from bottom to top, centred at `y`: the label of a vertical axis."""
    return (
        f'<text class="faint" x="{x:.2f}" y="{y:.2f}" text-anchor="middle" '
        f'transform="rotate(-90 {x:.2f} {y:.2f})">{escape(words)}</text>'
    )
