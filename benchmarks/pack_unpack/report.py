"""A run as tables, as JSON and as two pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..standing import Standing, plain_table, standings_json, standings_table
from .experiment import PASSES, SETUPS, Pass, Setup
from .measured import COMPILED, CONTESTANTS, MASKED, OURS, PACKED, Measured, Run

_STYLES = {PACKED: ".-r", MASKED: ".-g", OURS: ".-b", COMPILED: ".--c"}


def print_run(run: Run, found: Sequence[Standing], console: Console) -> None:
    """Print the milliseconds of every batch, then the floors."""
    for setup, which, measured in run.lines():
        console.print(_table(setup, which, measured))
    console.print(f"On {run.device}; batches of {run.batch}.\n", highlight=False)
    console.print(standings_table(found))


def _table(setup: Setup, which: Pass, measured: Sequence[Measured]) -> Table:
    there = [name for name in CONTESTANTS if name in measured[0].seconds]
    table = plain_table(f"Setup {setup}, {SETUPS[setup]}: {which}")
    for heading in ("T", *(f"{name} ms" for name in there), "we gain"):
        table.add_column(heading, justify="right")
    for one in measured:
        table.add_row(str(one.longest), *(f"{one.took_ms(name):.1f}" for name in there), f"{one.gain():.2f} x")
    return table


def to_json(run: Run, found: Sequence[Standing], about: dict[str, Any]) -> dict[str, Any]:
    """The run for machines; `seconds` has one value for each round."""
    return {
        "about": {**about, "device": run.device, "batch": run.batch},
        "measured": [_one(one) for one in run.measured],
        "floors": standings_json(found),
    }


def _one(one: Measured) -> dict[str, Any]:
    return {
        "setup": one.setup,
        "pass": one.which,
        "timesteps": one.longest,
        "seconds": dict(one.seconds),
        "times_faster_than_pack_unpack": {name: one.gain(name) for name in one.seconds},
    }


def draw(run: Run, setup: Setup, file: Path) -> None:
    """Draw two panels, the forward pass and both passes: milliseconds over the sequence length.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 6), layout="constrained")
    figure.suptitle(f"Setup {setup}, {SETUPS[setup]} (batches of {run.batch}, on {run.device})")
    for axes, which in zip(figure.subplots(1, 2), PASSES, strict=True):
        measured = run.of(setup, which)
        lengths = [one.longest for one in measured]
        for name in CONTESTANTS:
            if all(name in one.seconds for one in measured):
                axes.plot(lengths, [one.took_ms(name) for one in measured], _STYLES[name], label=name)
        axes.set_xticks(lengths)
        axes.set_xlabel("Sequence length")
        axes.set_ylabel("Runtime [ms], median")
        axes.set_title(which.capitalize())
        axes.grid(linestyle="dotted", color="gray")
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(file)
