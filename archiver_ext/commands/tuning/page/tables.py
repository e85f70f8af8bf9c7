"""Tables of a page: every number that its drawings show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from .....bucketing.shapes import Bucket
from ..bucket_use import BucketUse
from ..proposal import Proposal
from ..sample_batch import SampleBatch
from ..text import padding_percent, timesteps
from .costs_drawing import milliseconds

_LIST = ' class="list"'


def grids_table(proposal: Proposal) -> str:
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


def buckets_table(name: str, uses: Sequence[BucketUse], measured: Iterable[int]) -> str:
    """Return a row for each bucket length.

    `measured` are the lengths whose milliseconds are not interpolated.
    """
    known = set(measured)
    rows = (
        (
            str(use.length),
            f"{use.sequences:,}",
            f"{use.useful:,}",
            timesteps(use.padded),
            _share(use),
            *([] if use.milliseconds is None else [_milliseconds(use.milliseconds, exact=use.length in known)]),
        )
        for use in uses
    )
    costs = [] if any(use.milliseconds is None for use in uses) else ["ms of a full call"]
    heads = ("length", "sequences", "real timesteps", "timesteps of padding", "padding", *costs)
    return _table(name, heads, rows)


def costs_table(costs: Mapping[Bucket, float]) -> str:
    """Return a row for each measured call."""
    rows = ((str(own.batch), str(own.length), milliseconds(ms)) for own, ms in sorted(costs.items()))
    return _table("Measured calls", ("rows", "timesteps", "ms"), rows)


def calls_table(name: str, batch: SampleBatch) -> str:
    """Return a row for each planned call."""
    rows = (
        (
            str(number),
            f"{call.bucket.batch} x {call.bucket.length}",
            f"{call.start}",
            str(len(call.rows)),
            ", ".join(str(batch.lengths[row]) for row in call.rows),
        )
        for number, call in enumerate(batch.plan.calls, 1)
    )
    return _table(name, ("call", "rows x timesteps", "first timestep", "sequences", "their lengths"), rows)


def _share(use: BucketUse) -> str:
    if use.padded is None or not use.sequences:
        return padding_percent(None) if use.padded is None else "-"
    return padding_percent(use.padded / (use.useful + use.padded))


def _milliseconds(value: float, *, exact: bool) -> str:
    return milliseconds(value) + ("" if exact else " *")


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(
        [
            '<div class="wide"><table>',
            f"<caption>{escape(caption)}</caption>",
            f"<thead><tr>{''.join(_heads(heads))}</tr></thead>",
            "<tbody>",
            *(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows),
            "</tbody></table></div>",
        ]
    )


def _cell(words: str) -> str:
    return f"<td{_LIST if ', ' in words else ''}>{escape(words)}</td>"


def _heads(heads: Sequence[str]) -> Iterator[str]:
    return (f'<th scope="col">{escape(head)}</th>' for head in heads)
