"""The page of a proposal: its sections, in order."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..bucket_use import bucket_uses
from ..chart import make_chart
from ..grid_evaluation import GridEvaluation
from ..proposal import Proposal
from ..sample_batch import SampleBatch, make_sample_batch
from ..target import Target
from ..text import counted, explanation, padding_percent, result, summary
from .batch_drawing import draw_batch
from .costs_drawing import draw_costs, milliseconds
from .lengths_drawing import draw_lengths
from .style import PATTERN, STYLE
from .tables import buckets_table, calls_table, costs_table, grids_table

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

_NO_BATCHES = "Not planned: the sizes of the buckets are not known. Give --config or --archive."
_NOT_PLANNED = "Not planned: a bucket selector chooses the lengths, or no sequence is served."


def html_page(proposal: Proposal, target: Target, subject: str) -> str:
    """Return the page of a proposal, as one file that loads nothing; `subject` names what is tuned."""
    title = f"Bucket lengths for {subject}" if subject else "Bucket lengths"
    parts = [
        PATTERN,
        f"<header>\n<h1>{escape(title)}</h1>",
        *_lead(proposal, target),
        "</header>\n<main>",
        *_lengths(proposal, target),
        *_costs(target),
        *_batches(proposal, target),
        "</main>",
    ]
    return _HEAD.format(title=escape(title), style=STYLE) + "\n".join(parts) + "\n</body>\n</html>\n"


def _lead(proposal: Proposal, target: Target) -> Iterator[str]:
    yield f"<p>{escape(summary(proposal))}.</p>"
    saving = result(proposal)
    if saving:
        yield f"<p><strong>{escape(saving)}.</strong></p>"
    yield '<ul class="cards">'
    for grid in proposal.distinct_grids:
        yield _card(padding_percent(grid.ratio), f"padding, {grid.name} lengths")
    if proposal.proposed.milliseconds is not None:
        batch = "planned batches" if proposal.padding == "call" else "a full call"
        yield _card(f"{milliseconds(proposal.proposed.milliseconds)} ms", f"for a sequence in {batch}, as proposed")
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


def _lengths(proposal: Proposal, target: Target) -> Iterator[str]:
    yield "<section>\n<h2>Lengths and padding</h2>"
    yield "<p>The area of a bar, not its height, shows the timesteps. Vertical lines are the bucket lengths.</p>"
    yield _key(useful="real timesteps", **({"padded": "padding"} if proposal.padding == "bucket" else {}))
    yield f"<figure>\n{draw_lengths(make_chart(proposal))}\n</figure>"
    yield grids_table(proposal)
    measured = {bucket.length for bucket in target.costs if bucket.batch == target.batches[-1]}
    for grid in proposal.distinct_grids:
        rows = target.batches[-1] if target.batches else 1
        uses = bucket_uses(proposal.histogram, grid.counted_up_to, proposal.padding, target.costs, rows)
        yield buckets_table(f"Buckets, {grid.name} lengths", uses, measured)
    if target.costs:
        full = counted(target.batches[-1], "row")
        yield f'<p class="faint">A full call has {full}. * interpolated between measured calls.</p>'
    yield "</section>"


def _costs(target: Target) -> Iterator[str]:
    yield "<section>\n<h2>Milliseconds of a call</h2>"
    if target.costs:
        yield "<p>As packaging or calibration measured them, with every row at its full length.</p>"
        yield f"<figure>\n{draw_costs(target.costs, target.batches)}\n</figure>"
        yield f"<details>\n<summary>Table of the measured calls</summary>\n{costs_table(target.costs)}\n</details>"
    else:
        yield "<p>Not known: an archive has them. Give it with --archive.</p>"
    yield "</section>"


def _batches(proposal: Proposal, target: Target) -> Iterator[str]:
    yield "<section>\n<h2>One batch</h2>"
    grids = proposal.grids if proposal.padding == "bucket" else proposal.distinct_grids[:1]
    planned = [(grid, make_sample_batch(proposal.histogram, target, grid.lengths)) for grid in grids]
    if not any(batch for _, batch in planned):
        yield f"<p>{_NOT_PLANNED if target.batches else _NO_BATCHES}</p>"
    for grid, batch in planned:
        if batch is not None:
            yield from _batch(grid, batch, proposal)
    yield "</section>"


def _batch(grid: GridEvaluation, batch: SampleBatch, proposal: Proposal) -> Iterator[str]:
    stops_rows = proposal.padding == "none"
    if proposal.padding == "bucket":
        yield f"<h3>{escape(grid.name.capitalize())} lengths</h3>"
    sequences, calls = counted(len(batch.lengths), "sequence"), counted(len(batch.plan.calls), "call")
    by = "measured costs" if batch.measured else "estimated costs, since none are measured"
    numbers = " Numbers above the bars are those of the calls." if any(call.start for call in batch.plan.calls) else ""
    yield f"<p>{sequences} of typical lengths, a bar each, in {calls}. Planned by {by}.{numbers}</p>"
    after = {"idle": "not computed"} if stops_rows else {"padded": "padding"}
    yield _key(call0="a sequence, coloured by its call", **after)
    yield f"<figure>\n{draw_batch(f'{grid.name} lengths', batch, stops_rows=stops_rows)}\n</figure>"
    yield f"<details>\n<summary>Table of the calls</summary>\n{calls_table('Planned calls', batch)}\n</details>"
    if stops_rows:
        yield '<p class="faint">Layers outside the recurrence compute each row up to the longest of its call.</p>'


def _key(**names: str) -> str:
    """Explain classes of the style."""
    shown = "".join(
        f'<li><svg viewBox="0 0 20 10" aria-hidden="true"><rect class="{kind}" x="0.5" y="0.5" width="19" '
        f'height="9"/></svg>{escape(name)}</li>'
        for kind, name in names.items()
    )
    return f'<ul class="key">{shown}</ul>'
