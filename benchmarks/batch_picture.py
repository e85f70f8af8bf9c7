"""Drawing of one ragged batch and the program calls that the planner chooses for it.

python -m benchmarks.batch_picture docs/batch.svg

The lengths and the costs are examples; the plan is the package's own. Each row is a request, and each cell a timestep.
Hatched areas are padding that the programs compute.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid

LENGTHS = (9, 54, 14, 23, 7, 31, 12, 61, 16, 5, 26, 11)
GRID = BucketGrid(batches=(1, 2, 4, 8), lengths=(16, 32, 64))
COST = CostModel(
    {bucket: 0.05 + bucket.length * (0.02 + 0.0088 * bucket.batch) for bucket in GRID.buckets},
)
COLOURS = ("#3b6fb6", "#c8612a", "#3d8a5f", "#8a5aa8")

STEP, ROW, GAP, TOP = 4, 16, 5, 74
WIDTH, MARGIN, CALL_GAP = 1000, 28, 30
COLUMNS = (MARGIN + 26, 362, 706)
"""The left edges of the bars: as received, sorted, and in the programs."""


def plan() -> Plan:
    """Plan the batch by the costs above."""
    return make_planner("sequence", GRID, COST).plan(LENGTHS)


def draw(planned: Plan, lengths: Sequence[int]) -> str:
    """Draw a plan of whole-sequence programs as an SVG document."""
    colours = {row: COLOURS[index % len(COLOURS)] for index, call in enumerate(planned.calls) for row in call.rows}
    ranked = [row for call in planned.calls for row in call.rows]
    calls, bottom = _calls(planned, lengths, colours)
    bottom = max(bottom, TOP + len(lengths) * (ROW + GAP))
    parts = [
        *_column(COLUMNS[0], "1. A batch arrives", range(len(lengths)), lengths, colours),
        *_column(COLUMNS[1], "2. Sorted by length", ranked, lengths, colours),
        _text(COLUMNS[2], 34, "3. The cheapest program calls", size=16, weight=600),
        _text(COLUMNS[2], 54, "each box: one call of one compiled program", size=12, colour="#57606a"),
        *calls,
        *(_arrow(x, TOP + len(lengths) * (ROW + GAP) / 2) for x in (COLUMNS[1] - 52, COLUMNS[2] - 62)),
        *_programs(TOP + (len(lengths) + 2) * (ROW + GAP)),
        *_summary(planned, lengths, bottom + 22),
    ]
    return "\n".join([*_head(bottom + 62), *parts, "</svg>", ""])


def _head(height: float) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" role="img">'
    )
    yield "<title>One ragged batch, sorted by length and run by the cheapest set of compiled programs</title>"
    yield (
        '<defs><pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" fill="#f3f4f6"/>'
        '<line x1="0" y1="0" x2="0" y2="6" stroke="#9aa1a9" stroke-width="1.6"/></pattern></defs>'
    )
    yield f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8" fill="#ffffff" stroke="#d0d7de"/>'


def _column(
    left: float, title: str, rows: Sequence[int], lengths: Sequence[int], colours: dict[int, str]
) -> Iterator[str]:
    yield _text(left, 34, title, size=16, weight=600)
    yield _text(left, 54, "one bar per request, its length in timesteps", size=12, colour="#57606a")
    for index, row in enumerate(rows):
        yield from _request(left, TOP + index * (ROW + GAP), row, lengths[row], colours[row])


def _request(left: float, top: float, row: int, length: int, colour: str, label_gap: float = 6) -> Iterator[str]:
    yield _text(left - label_gap, top + ROW - 4, chr(ord("a") + row), size=12, anchor="end", colour="#57606a")
    yield _rectangle(left, top, length * STEP, ROW, colour)
    inside = length * STEP >= 20
    yield _text(
        left + length * STEP + (-4 if inside else 4),
        top + ROW - 4,
        str(length),
        size=11,
        anchor="end" if inside else "start",
        colour="#ffffff" if inside else "#24292f",
    )


def _calls(planned: Plan, lengths: Sequence[int], colours: dict[int, str]) -> tuple[list[str], float]:
    parts: list[str] = []
    top: float = TOP + 16
    left = COLUMNS[2]
    for call in planned.calls:
        width, height = call.bucket.length * STEP, call.bucket.batch * (ROW + GAP) - GAP
        colour = colours[call.rows[0]]
        label = f"{call.bucket.batch} rows x {call.bucket.length} timesteps"
        parts.append(_text(left - 4, top - 8, label, size=12, weight=600, colour=colour))
        tops = [top + place * (ROW + GAP) for place in range(call.bucket.batch)]
        parts += [_rectangle(left, one, width, ROW, "url(#padding)") for one in tops]
        for row, one in zip(call.rows, tops, strict=False):
            parts += _request(left, one, row, lengths[row], colour, label_gap=11)
        parts.append(
            f'<rect x="{left - 4:g}" y="{top - 3:g}" width="{width + 8:g}" height="{height + 6:g}" rx="4" '
            f'fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        top += height + CALL_GAP
    return parts, top - CALL_GAP


def _programs(top: float) -> Iterator[str]:
    batches, lengths = (", ".join(map(str, sizes)) for sizes in (GRID.batches, GRID.lengths))
    yield _text(MARGIN, top, f"Compiled programs: {len(GRID.buckets)} buckets", size=13, weight=600)
    yield _text(MARGIN, top + 20, f"{batches} rows x {lengths} timesteps", size=13)
    yield _text(MARGIN, top + 40, "A call has fixed shapes: rows that no request needs are padding too.", size=13)


def _summary(planned: Plan, lengths: Sequence[int], top: float) -> Iterator[str]:
    real, computed = sum(lengths), planned.computed_timesteps
    padded = len(lengths) * max(lengths)
    yield _rectangle(MARGIN, top, 28, ROW, "url(#padding)")
    yield _text(
        MARGIN + 36,
        top + 13,
        f"padding: {100 * (1 - real / computed):.0f} % of the {computed} computed timesteps.  "
        f"All {len(lengths)} requests padded to the longest in one call: "
        f"{100 * (1 - real / padded):.0f} % of {padded}.",
        size=13,
    )


def _arrow(left: float, middle: float) -> str:
    return (
        f'<path d="M{left:g} {middle:g} h18 m-6 -6 l6 6 l-6 6" fill="none" stroke="#57606a" stroke-width="2" '
        f'stroke-linecap="round" stroke-linejoin="round"/>'
    )


def _rectangle(left: float, top: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>'


def _text(
    left: float,
    baseline: float,
    words: str,
    *,
    size: int,
    colour: str = "#24292f",
    anchor: str = "start",
    weight: int = 400,
) -> str:
    return (
        f'<text x="{left:g}" y="{baseline:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}">{words}</text>'
    )


def main() -> None:
    """Write the picture to the file that is named."""
    parser = argparse.ArgumentParser(description="Draw one ragged batch and the program calls planned for it.")
    parser.add_argument("file", type=Path, help="the SVG to write, such as docs/batch.svg")
    parser.parse_args().file.write_text(draw(plan(), LENGTHS), encoding="utf-8")


if __name__ == "__main__":
    main()
