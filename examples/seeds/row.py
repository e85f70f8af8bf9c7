"""One line of `make seeds`: an example on an engine, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from .engines import not_here, what_runs
from .shown import Engine, Shown

Status = Literal["ok", "failed", "not run"]


@dataclass(frozen=True)
class Row:
    """The report of one example on one engine."""

    example: str
    engine: str
    ran: str
    """The source of the answers; empty if the example did not run."""
    status: Status
    note: str
    """Other results, or the reason why the example failed or was not run."""
    max_error: float | None = None
    """The largest difference from eager mode; None if no outputs were compared."""
    tolerance: float | None = None
    """The accepted difference, absolute and relative to the eager answer."""
    refused: tuple[str, ...] = ()
    """The messages of the calls that were refused as documented."""
    latency_us: float | None = None
    """Microseconds of one call on the device, by its compiler's count."""
    seconds: float = 0.0
    """Seconds of the whole example on this machine."""


def row_of(name: str, show: Callable[[Engine], Shown], engine: Engine, note: str = "") -> Row:
    """Run an example. An error that it raises makes the row failed."""
    if (reason := not_here(engine)) is not None:
        return Row(name, engine.name, "", "not run", reason)
    ran = what_runs(engine)
    torch.manual_seed(0)
    began = time.perf_counter()
    try:
        shown = show(engine)
    except Exception as error:  # noqa: BLE001 - one example's failure must not hide the others
        return Row(name, engine.name, ran, "failed", f"{type(error).__name__}: {error}", tolerance=engine.tolerance)
    notes = [note] if note else []
    if shown.latency_us is not None:
        notes.insert(0, f"{shown.latency_us:.1f} us by the compiler's count")
    return Row(
        name,
        engine.name,
        ran,
        "ok",
        "; ".join(notes),
        shown.max_error,
        engine.tolerance,
        tuple(shown.refused),
        shown.latency_us,
        time.perf_counter() - began,
    )
