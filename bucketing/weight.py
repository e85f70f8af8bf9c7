"""Costs as whole numbers: sums are exact, so the same batch has the same plan, whatever the order of adding."""

from __future__ import annotations

from typing import NamedTuple

from .cost import CostModel, Line

_UNIT = 1 << 40  # more than any plan's sum of B x T
_PER_MILLISECOND = 10**9  # picoseconds: a step of a small model is a few hundred nanoseconds


class Weighed(NamedTuple):
    """A call's `Line` as whole numbers, ordered as plans are: by picoseconds, then by B x T."""

    call: int
    step: int


def weigh(line: Line, batch: int) -> Weighed:
    """The weight of a call of `batch` rows: `call`, and `step` for each timestep."""
    picoseconds = (round(part * _PER_MILLISECOND) for part in line)
    call, step = (part * _UNIT for part in picoseconds)
    return Weighed(call, step + batch)


def weigh_lines(cost: CostModel, batch: int) -> tuple[Weighed, ...]:
    """The weights of 0 to `batch` rows. Nothing is run with 0 rows; the place is kept so that rows are indices."""
    return (Weighed(0, 0), *(weigh(cost.line(rows), rows) for rows in range(1, batch + 1)))
