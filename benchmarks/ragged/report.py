"""A run as a table, as bars, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from .floors import Standing
from .measured import ONNX, OURS, PACKED, PADDED, Measured, Run

CONTESTANTS = (OURS, ONNX, PADDED, PACKED)
_BAR = 20  # signs
_COLOURS = {"aim": "green", "floor": "yellow", "missed": "red"}


def print_run(run: Run, found: Sequence[Standing], console: Console) -> None:
    """Rates as bars beside their numbers, then the floors."""
    for measured in run.measured:
        console.print(_rates(run, measured))
    console.print(f"A whole bar is the machine's own matrix product: {run.gemm_gflops:.0f} GFLOP/s\n", highlight=False)
    console.print(_floors(found))


def _rates(run: Run, measured: Measured) -> Table:
    table = _table(str(measured.case))
    table.add_column("", width=max(map(len, CONTESTANTS)))
    table.add_column("useful rate", width=_BAR)
    for heading in ("GFLOP/s", "of GEMM", "ms a batch", "we gain"):
        table.add_column(heading, justify="right")
    for contestant in CONTESTANTS:
        if contestant in measured.seconds:
            table.add_row(*_row(run, measured, contestant))
    return table


def _row(run: Run, measured: Measured, contestant: str) -> tuple[RenderableType, ...]:
    share = run.share(measured.case, contestant)
    per_batch = 1000 * measured.took(contestant) / len(measured.case.batches)
    return (
        contestant,
        Bar(1, 0, min(share, 1), width=_BAR, color="green" if contestant == OURS else "blue"),
        f"{measured.gflops(contestant):.0f}",
        f"{share:.2f}",
        f"{per_batch:.2f}",
        "" if contestant == OURS else f"{measured.times_faster(contestant):.2f} x",
    )


def _floors(found: Sequence[Standing]) -> Table:
    table = _table("What must hold")
    table.add_column("")
    for heading in ("measured", "at least", "aim", "reached"):
        table.add_column(heading, justify="right", no_wrap=True)
    for standing in found:
        numbers = (f"{number:.2f}" for number in (standing.value, standing.at_least, standing.aim))
        table.add_row(standing.what, *numbers, f"[{_COLOURS[standing.reached]}]{standing.reached}")
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, highlight=False
    )


def to_json(run: Run, found: Sequence[Standing], about: dict[str, Any]) -> dict[str, Any]:
    """The same for machines; `seconds` are of all batches of a case, one value a round."""
    return {
        "about": about,
        "gemm_gflops": run.gemm_gflops,
        "cases": [_case(run, measured) for measured in run.measured],
        "floors": [
            {
                "what": standing.what,
                "value": standing.value,
                "at_least": standing.at_least,
                "aim": standing.aim,
                "reached": standing.reached,
            }
            for standing in found
        ],
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
                "of_gemm": run.share(measured.case, contestant),
                "we_are_times_faster": measured.times_faster(contestant),
            }
            for contestant, seconds in measured.seconds.items()
        },
    }


def draw(run: Run, file: Path) -> None:
    """A picture of the rates, in the format that the file's name ends with.

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
    axes.axvline(run.gemm_gflops, color="black", linestyle=":", label="GEMM of the machine")
    names = [str(found.case) for found in run.measured]
    axes.set_yticks([row + 1.5 * height for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlabel("useful GFLOP/s")
    axes.legend()
    figure.savefig(file)
