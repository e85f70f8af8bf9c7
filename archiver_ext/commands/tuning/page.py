"""Page of a proposal: one HTML file without scripts. The drawing is inline SVG, every number is in a table too."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from .lengths_drawing import draw_lengths
from .proposal import Proposal, explanation, padding_percent, result, summary, timesteps
from .target import Target

_HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
"""


def html_page(proposal: Proposal, target: Target, subject: str) -> str:
    """Return the page of a proposal, as one file that loads nothing; `subject` names what is tuned."""
    title = f"Bucket lengths for {subject}" if subject else "Bucket lengths"
    parts = [
        _PATTERN,
        f"<header>\n<h1>{escape(title)}</h1>",
        *_lead(proposal, target),
        "</header>\n<main>\n<section>\n<h2>Lengths and padding</h2>",
        "<p>The area of a bar, not its height, shows the timesteps: hatched ones are padding. Lines are lengths.</p>",
        f"<figure>\n{draw_lengths(proposal)}\n</figure>",
        _grids_table(proposal),
        "</section>\n</main>",
    ]
    return _HEAD.format(title=escape(title), style=_STYLE) + "\n".join(parts) + "\n</body>\n</html>\n"


def _lead(proposal: Proposal, target: Target) -> Iterator[str]:
    yield f"<p>{escape(summary(proposal))}.</p>"
    if saving := result(proposal):
        yield f"<p><strong>{escape(saving)}.</strong></p>"
    for sentence in explanation(target):
        yield f"<p>{escape(sentence)}</p>"
    for note in target.notes():
        yield f'<p class="note">{escape(note[0].upper() + note[1:])}.</p>'


_PATTERN = (
    '<svg class="definitions" aria-hidden="true" width="0" height="0"><defs>'
    '<pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="padding-ground" width="6" height="6"/><rect class="padding-stripe" width="2.4" height="6"/>'
    "</pattern></defs></svg>"
)
"""Hatching of padding."""

_STYLE = """\
:root { color-scheme: light dark; --ink: #1f2933; --faint: #5d6b7a; --rule: #d9dee4; --paper: #ffffff; --card: #f5f7f9;
  --useful: #3b6fb6; --ground: #fbe3c8; --stripe: #d9822b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --faint: #9fabb8; --rule: #39424d; --paper: #14181d; --card: #1d232a;
    --useful: #6f9fdc; --ground: #4a3621; --stripe: #e09a4a }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .4rem }
p { margin: .35rem 0; max-width: 48rem }
.note { background: var(--card);
  border-left: 4px solid var(--stripe); padding: .5rem .9rem; border-radius: 0 .3rem .3rem 0 }
.definitions { position: absolute }
figure, .wide { margin: .6rem 0 1rem; overflow-x: auto }
figure svg { width: 100%; min-width: 44rem; height: auto; display: block;
  font: 13px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif }
svg text { fill: var(--ink) }
svg text.strong { font-size: 15px; font-weight: 600 }
svg text.faint { fill: var(--faint) }
.axis { stroke: var(--faint) } .edge { stroke: var(--ink); opacity: .65 }
.useful { fill: var(--useful) } .padded { fill: url(#padding) }
.padding-ground { fill: var(--ground) } .padding-stripe { fill: var(--stripe) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .3rem 0 1rem }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { white-space: nowrap; text-align: right; padding: .3rem 0 .3rem 1.4rem; border-bottom: 1px solid var(--rule) }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
td:last-child { white-space: normal; min-width: 14rem }
th { color: var(--faint); font-weight: 500 }"""


def _grids_table(proposal: Proposal) -> str:
    rows = (
        (
            grid.name,
            padding_percent(grid.ratio),
            timesteps(grid.computed),
            f"{grid.useful:,}",
            f"{grid.refused:,}",
            "not known" if grid.milliseconds is None else f"{grid.milliseconds:.3g}",
            ", ".join(map(str, grid.lengths)),
        )
        for grid in proposal.grids
    )
    heads = ("grid", "padding", "computed timesteps", "real timesteps", "refused", "ms per sequence", "lengths")
    head = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    cells = ("".join(f"<td>{escape(words)}</td>" for words in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>\n" for row in cells)
    caption = "Both grids" if proposal.current else "The grid"
    return (
        f'<div class="wide"><table>\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}'
        "</tbody></table></div>"
    )
