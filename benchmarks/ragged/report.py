"""A run as a table, as bars, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table

from ..standing import Standing, plain_table, standings_json, standings_table
from .measured import ONNX, OURS, PACKED, PADDED, PLANNED, Measured, Run

CONTESTANTS = (OURS, PLANNED, ONNX, PADDED, PACKED)
_BAR = 20  # signs


def print_run(run: Run, found: Sequence[Standing], console: Console) -> None:
    """Print the rates as bars beside their numbers, then the floors."""
    for measured in run.measured:
        console.print(_rates(run, measured))
    console.print(
        f"A whole bar is the cores' fused multiply-adds: {run.rates.fma:.0f} GFLOP/s at best. Their median was "
        f"{run.rates.usual_fma / run.rates.fma:.2f} of that, and torch's matrix product at best "
        f"{run.rates.gemm / run.rates.fma:.2f}.\n",
        highlight=False,
    )
    console.print(standings_table(found))
    if not run.quiet:
        console.print(
            f"The machine was busy: only {run.cores_obtained:.0%} of its cores' time was to be had. "
            "Measure again when nothing else runs.\n",
            style="red",
            highlight=False,
        )


def _rates(run: Run, measured: Measured) -> Table:
    table = plain_table(str(measured.case))
    table.add_column("", width=max(map(len, CONTESTANTS)))
    table.add_column("useful rate", width=_BAR)
    for heading in ("GFLOP/s", "of FMA", "at best", "in round", "ms a batch", "we gain"):
        table.add_column(heading, justify="right")
    for contestant in CONTESTANTS:
        if contestant in measured.seconds:
            table.add_row(*_row(run, measured, contestant))
    return table


def _row(run: Run, measured: Measured, contestant: str) -> tuple[RenderableType, ...]:
    share = run.ratio(measured.case, contestant)
    per_batch = 1000 * measured.took(contestant) / len(measured.case.batches)
    return (
        contestant,
        Bar(1, 0, min(share, 1), width=_BAR, color="green" if contestant == OURS else "blue"),
        f"{measured.gflops(contestant):.0f}",
        f"{share:.2f}",
        f"{measured.best_gflops(contestant) / run.rates.fma:.2f}",
        f"{measured.share_in_round(contestant):.2f}",
        f"{per_batch:.2f}",
        "" if contestant == OURS else f"{measured.times_faster(contestant):.2f} x",
    )


def to_json(run: Run, found: Sequence[Standing], about: dict[str, Any]) -> dict[str, Any]:
    """The run for machines; `seconds` are of all batches of a case, one value for each round."""
    return {
        "about": about,
        "fma_gflops": run.rates.fma,
        "usual_fma_gflops": run.rates.usual_fma,
        "gemm_gflops": run.rates.gemm,
        "cores_obtained": run.cores_obtained,
        "cases": [_case(run, measured) for measured in run.measured],
        "floors": standings_json(found),
    }


def _case(run: Run, measured: Measured) -> dict[str, Any]:
    return {
        "case": str(measured.case),
        "batches": measured.case.batches,
        "flop": measured.case.flop,
        "contestants": {
            contestant: {
                "seconds": seconds,
                "gflops": measured.gflops(contestant),
                "best_gflops": measured.best_gflops(contestant),
                "of_fma": run.ratio(measured.case, contestant),
                "of_fma_in_round": measured.share_in_round(contestant),
                "we_are_times_faster": measured.times_faster(contestant),
            }
            for contestant, seconds in measured.seconds.items()
        },
    }


def draw(run: Run, file: Path) -> None:
    """Draw a picture of the rates, in the format of the file's suffix.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1 + 0.9 * len(run.measured)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(CONTESTANTS)
    for place, contestant in enumerate(CONTESTANTS):
        there = [row for row, found in enumerate(run.measured) if contestant in found.seconds]
        rates = [run.measured[row].gflops(contestant) for row in there]
        axes.barh([row + height * place for row in there], rates, height, label=contestant)
    axes.axvline(run.rates.fma, color="black", linestyle=":", label="multiply-adds of the cores")
    names = [str(found.case) for found in run.measured]
    axes.set_yticks([row + 0.5 * (len(CONTESTANTS) - 1) * height for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlabel("useful GFLOP/s")
    axes.legend()
    figure.savefig(file)
