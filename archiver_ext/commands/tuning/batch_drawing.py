"""Drawing of the planned calls of one batch of typical sequences.

Each sequence has a bar in the colour of its call, and padding is hatched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ....bucketing.bucket_lengths import Histogram, clip_histogram
from ....bucketing.plan import Plan, ProgramCall
from . import svg
from .proposal import counted
from .target import Target

_LEFT, _RIGHT, _TOP, _ROW, _GAP, _CALL_GAP, _AXIS = 48, 130, 20, 15, 4, 20, 56
_COLOURS = 6
_NARROW = 20  # units: the number of a call does not fit above it


@dataclass(frozen=True)
class _Layout:
    """Vertical places of the rows, in units of the drawing."""

    tops: dict[int, float]
    """Top of each sequence."""
    dummies: tuple[tuple[int, float], ...]
    """The call, by its index, and the top of each row that no sequence needs."""
    blocks: frozenset[float]
    """Tops of the first sequences of the calls that begin at the first timestep."""
    height: float


def draw_batch(name: str, batch: SampleBatch, *, stops_rows: bool) -> str:
    """Draw the plan of a batch. `stops_rows`: the engine computes nothing after the end of a sequence."""
    layout = _layout(batch.plan)
    real = sum(batch.lengths)
    computed = real if stops_rows else batch.plan.computed_timesteps
    return svg.drawing(
        name.replace(" ", "-"),
        f"Planned calls of one batch: {name}",
        f"{counted(len(batch.lengths), 'sequence')} of {batch.lengths[0]} to {batch.lengths[-1]} timesteps in "
        f"{counted(len(batch.plan.calls), 'call')}: {real:,} real timesteps, {computed - real:,} of padding.",
        layout.height + _AXIS,
        _parts(batch, layout, stops_rows=stops_rows),
    )


def _layout(plan: Plan) -> _Layout:
    tops: dict[int, float] = {}
    dummies: list[tuple[int, float]] = []
    blocks: set[float] = set()
    top: float = _TOP
    for index, call in enumerate(plan.calls):
        new = [row for row in call.rows if row not in tops]
        if call.start or not new:
            continue
        blocks.add(top)
        for row in new:
            tops[row] = top
            top += _ROW + _GAP
        for _ in range(call.bucket.batch - len(call.rows)):
            dummies.append((index, top))
            top += _ROW + _GAP
        top += _CALL_GAP
    later = [(index, call) for index, call in enumerate(plan.calls) if call.start]
    for index, call in later:  # the rows that have ended are below those that are active
        lowest = max(tops[row] for row in call.rows)
        below = sorted(place for place in tops.values() if place > lowest)
        dummies += [(index, place) for place in below[: call.bucket.batch - len(call.rows)]]
    return _Layout(tops, tuple(dummies), frozenset(blocks), top)


def _parts(batch: SampleBatch, layout: _Layout, *, stops_rows: bool) -> Iterator[str]:
    calls = batch.plan.calls
    scale = (svg.WIDTH - _LEFT - _RIGHT) / max(call.start + call.bucket.length for call in calls)
    for index, call in enumerate(calls):
        yield from _call(index, call, batch.lengths, layout, scale, stops_rows=stops_rows)
    for index, top in layout.dummies:
        call = calls[index]
        kind = "idle" if stops_rows else "padded"
        label = f"call {index + 1}: a row without a sequence"
        yield svg.rectangle(_LEFT + call.start * scale, top, call.bucket.length * scale, _ROW, kind, label)
    for row, top in layout.tops.items():
        yield svg.text(_LEFT - 8, top + 12, str(batch.lengths[row]), "end")
    yield from _labels(calls, layout, scale)
    yield from _axis(layout.height, scale)


def _call(
    index: int, call: ProgramCall, lengths: Sequence[int], layout: _Layout, scale: float, *, stops_rows: bool
) -> Iterator[str]:
    end = call.start + call.bucket.length
    for row in call.rows:
        top, real = layout.tops[row], min(lengths[row], end)
        left, middle, right = (_LEFT + steps * scale for steps in (call.start, real, end))
        label = f"call {index + 1}: a sequence of {counted(lengths[row], 'timestep')}"
        yield svg.rectangle(left, top, middle - left, _ROW, f"call{index % _COLOURS}", label)
        if right > middle:
            kind = "idle" if stops_rows else "padded"
            after = "not computed" if stops_rows else f"{end - real} of padding"
            yield svg.rectangle(middle, top, right - middle, _ROW, kind, f"{label}, {after}")


def _labels(calls: Sequence[ProgramCall], layout: _Layout, scale: float) -> Iterator[str]:
    """The shape of each call beside it; of chunks, which are side by side, the number of the call above it."""
    chunks = any(call.start for call in calls)
    for number, call in enumerate(calls, 1):
        left, top = _LEFT + call.start * scale, layout.tops[call.rows[0]]
        width = call.bucket.length * scale
        if not chunks:
            label = f"call {number}: {call.bucket.batch} x {call.bucket.length}"
            yield svg.text(left + width + 8, top + 12, label, "start", "faint")
        elif top in layout.blocks and width > _NARROW:
            yield svg.text(left + 2, top - 5, str(number), "start", "faint")


def _axis(bottom: float, scale: float) -> Iterator[str]:
    longest = round((svg.WIDTH - _LEFT - _RIGHT) / scale)
    step = next(digit * 10**power for power in range(10) for digit in (1, 2, 5) if digit * 10**power * 8 >= longest)
    yield svg.line(_LEFT, bottom, _LEFT + longest * scale, bottom, "axis")
    for steps in range(0, longest + 1, step):
        x = _LEFT + steps * scale
        yield svg.line(x, bottom, x, bottom + 5, "axis")
        yield svg.text(x, bottom + 20, str(steps), "middle")
    yield svg.text(
        _LEFT + longest * scale / 2,
        bottom + 44,
        "timesteps, with the length of each sequence on the left",
        "middle",
        "faint",
    )


_ROWS = 16
"""Most rows of the batch: as many as a picture shows well."""


@dataclass(frozen=True)
class SampleBatch:
    """Lengths of a batch, and its plan."""

    lengths: tuple[int, ...]
    """Timesteps of each sequence, ascending."""
    plan: Plan
    measured: bool
    """Whether the plan was made by measured costs, not by estimates."""


def make_sample_batch(histogram: Histogram, target: Target, lengths: tuple[int, ...]) -> SampleBatch | None:
    """Plan a batch of typical sequences for bucket lengths. None if no planner is known or no sequence is served."""
    served = clip_histogram(histogram, lengths[-1], truncate=target.truncate)
    if target.make_planner is None or not any(served.values()):
        return None
    rows = quantiles(served, min(_ROWS, target.batches[-1]))
    return SampleBatch(rows, target.make_planner(lengths).plan(rows), bool(target.costs))


def quantiles(histogram: Histogram, rows: int) -> tuple[int, ...]:
    """Return the lengths in the middle of `rows` equal parts of the sequences, ascending.

    >>> quantiles({3: 2, 5: 1, 9: 1}, rows=4)
    (3, 3, 5, 9)
    """
    lengths = sorted(length for length, number in histogram.items() if number)
    ends = list(accumulate(histogram[length] for length in lengths))
    middles = ((2 * row + 1) * ends[-1] for row in range(rows))
    return tuple(
        next(length for length, end in zip(lengths, ends, strict=True) if middle <= 2 * rows * end)
        for middle in middles
    )
