"""Floors of the engine, and the standing of a run."""

from __future__ import annotations

from ..standing import Standing
from . import cases
from .cases import MIDDLE, Case
from .measured import ONNX, PACKED, PADDED, Run
from .plans import beyond_optimum, wasted

SHARES: tuple[tuple[Case, float, float], ...] = (
    (cases.TRIANGLE_32, 0.80, 0.88),
    (cases.LOG_NORMAL_32, 0.70, 0.75),
    (cases.TRIANGLE_8, 0.74, 0.82),
    (cases.SMALL_32, 0.74, 0.80),
    (cases.BOTH_WAYS_32, 0.76, 0.85),
)
"""The useful rate as a share of the cores' rate of multiply-adds: the floor and the aim."""


def standings(run: Run) -> list[Standing]:
    """Every floor, in the order of the report."""
    return [
        *(Standing(f"useful rate / FMA rate, {case}", run.ratio(case), floor, aim) for case, floor, aim in SHARES),
        _worst(run, PACKED, 1.8, 2.0),
        _worst(run, ONNX, 1.4, 1.7),
        Standing(f"times faster than eager, one request ({cases.LONE})", _lone(run), 1.5, 2.0),
        *(_tuned(count) for count in (8, 16)),
        Standing("waste of chunks on a fixed grid of 6 x 8", wasted(run.chunk_costs[MIDDLE]), 0.15, 0.08, "less"),
    ]


def _worst(run: Run, other: str, floor: float, aim: float) -> Standing:
    times, case = min(((run.of(case).times_faster(other), str(case)) for case, *_ in SHARES), key=lambda pair: pair[0])
    return Standing(f"times faster than {other}, the worst ({case})", times, floor, aim)


def _lone(run: Run) -> float:
    """The ratio to the faster of the two eager modes for one request, which needs no packing."""
    lone = run.of(cases.LONE)
    return min(lone.times_faster(PACKED), lone.times_faster(PADDED))


def _tuned(count: int) -> Standing:
    what = f"padding of {count} tuned lengths beyond the optimum, in points"
    return Standing(what, beyond_optimum(count), 0.1, 0.1, "less")
