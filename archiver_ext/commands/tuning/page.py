"""Page of a proposal: one HTML file without scripts.

The drawing is inline SVG, and every number is in a table as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from .grid_evaluation import BucketUse, bucket_uses
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
        "</header>\n<main>",
        *_lengths(proposal),
        "</main>",
    ]
    return _HEAD.format(title=escape(title), style=_STYLE) + "\n".join(parts) + "\n</body>\n</html>\n"


def _lead(proposal: Proposal, target: Target) -> Iterator[str]:
    yield f"<p>{escape(summary(proposal))}.</p>"
    saving = result(proposal)
    if saving:
        yield f"<p><strong>{escape(saving)}.</strong></p>"
    yield '<ul class="cards">'
    for grid in proposal.distinct_grids:
        yield _card(padding_percent(grid.ratio), f"padding, {grid.name} lengths")
    if proposal.proposed.milliseconds is not None:
        yield _card(f"{milliseconds(proposal.proposed.milliseconds)} ms", "for a sequence in a full call, as proposed")
    yield _card(target.engine.engine or "not known", "engine")
    if target.batches:
        yield _card(", ".join(map(str, target.batches)), "rows of the buckets")
    yield "</ul>"
    for sentence in explanation(target):
        yield f"<p>{escape(sentence)}</p>"
    for note in target.notes():
        yield f'<p class="note">{escape(note[0].upper() + note[1:])}.</p>'


def _card(figure: str, name: str) -> str:
    return f"<li><strong>{escape(figure)}</strong><span>{escape(name)}</span></li>"


def _lengths(proposal: Proposal) -> Iterator[str]:
    yield "<section>\n<h2>Lengths and padding</h2>"
    yield "<p>The area of a bar, not its height, shows the timesteps. Vertical lines are the bucket lengths.</p>"
    yield _key(useful="real timesteps", **({"padded": "padding"} if proposal.padding == "bucket" else {}))
    yield f"<figure>\n{draw_lengths(proposal)}\n</figure>"
    yield _grids_table(proposal)
    for grid in proposal.distinct_grids:
        uses = bucket_uses(proposal.histogram, grid.counted_up_to, proposal.padding)
        yield _buckets_table(f"Buckets, {grid.name} lengths", uses)
    yield "</section>"


def _key(**names: str) -> str:
    """Explain classes of the style."""
    shown = "".join(
        f'<li><svg viewBox="0 0 20 10" aria-hidden="true"><rect class="{kind}" x="0.5" y="0.5" width="19" '
        f'height="9"/></svg>{escape(name)}</li>'
        for kind, name in names.items()
    )
    return f'<ul class="key">{shown}</ul>'


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
.faint { color: var(--faint) }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.2rem 0; padding: 0; list-style: none }
.cards li { flex: 1 1 10rem; background: var(--card); border: 1px solid var(--rule); border-radius: .5rem;
  padding: .7rem .9rem; line-height: 1.3 }
.cards strong { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums }
.cards span { color: var(--faint); font-size: .875rem }
.note { background: var(--card);
  border-left: 4px solid var(--stripe); padding: .5rem .9rem; border-radius: 0 .3rem .3rem 0 }
.key { display: inline-flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: .5rem 0; padding: 0;
  list-style: none; font-size: .9rem }
.key svg { width: 1.6em; height: .8em; margin: 0 .45em 0 0; display: inline-block; vertical-align: baseline }
.definitions { position: absolute }
figure { margin: .6rem 0 1rem; overflow-x: auto }
figure svg { width: 100%; min-width: 44rem; height: auto; display: block;
  font: 13px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif }
svg text { fill: var(--ink) }
svg text.strong { font-size: 15px; font-weight: 600 }
svg text.faint { fill: var(--faint) }
.axis { stroke: var(--faint) }
.edge { stroke: var(--ink); opacity: .65 }
.useful { fill: var(--useful) }
.padded { fill: url(#padding) }
.padding-ground { fill: var(--ground) }
.padding-stripe { fill: var(--stripe) }
.all { fill: var(--faint) }
figure rect { shape-rendering: crispEdges }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .3rem 0 1rem }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { text-align: right; padding: .3rem 0 .3rem 1.4rem; border-bottom: 1px solid var(--rule); vertical-align: top }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
th, td { white-space: nowrap }
td.list { white-space: normal; min-width: 14rem }
th { color: var(--faint); font-weight: 500 }"""


def _grids_table(proposal: Proposal) -> str:
    """Return a row for each grid, with the figures of `--json`."""
    rows = (
        (
            grid.name,
            padding_percent(grid.ratio),
            timesteps(grid.computed),
            f"{grid.useful:,}",
            f"{grid.refused:,}",
            "not known" if grid.milliseconds is None else milliseconds(grid.milliseconds),
            ", ".join(map(str, grid.lengths)),
        )
        for grid in proposal.grids
    )
    heads = ("grid", "padding", "computed timesteps", "real timesteps", "refused", "ms per sequence", "lengths")
    return _table("Both grids" if proposal.current else "The grid", heads, rows)


def _buckets_table(name: str, uses: Sequence[BucketUse]) -> str:
    """Return a row for each bucket length."""
    rows = (
        (str(use.length), f"{use.sequences:,}", f"{use.useful:,}", timesteps(use.padded), _share(use)) for use in uses
    )
    return _table(name, ("length", "sequences", "real timesteps", "timesteps of padding", "padding"), rows)


def milliseconds(value: float) -> str:
    """Format milliseconds with three digits.

    >>> milliseconds(0.012345), milliseconds(12.345), milliseconds(1234.5)
    ('0.0123', '12.3', '1,234')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _share(use: BucketUse) -> str:
    if use.padded is None or not use.sequences:
        return padding_percent(None) if use.padded is None else "-"
    return padding_percent(use.padded / (use.useful + use.padded))


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    caption = f"<caption>{escape(caption)}</caption>"
    return (
        f'<div class="wide"><table>\n{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'
    )


def _cell(words: str) -> str:
    kind = ' class="list"' if ", " in words else ""
    return f"<td{kind}>{escape(words)}</td>"
