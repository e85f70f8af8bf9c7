"""One line of `make seeds`: an example on an engine, and how it went."""

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
    """What is told of one example on one engine."""

    example: str
    engine: str
    ran: str
    """What the answers came from; empty where nothing ran."""
    status: Status
    note: str
    """What was found besides, or why it failed or was not run."""
    max_error: float | None = None
    """The largest difference from eager; None where nothing was compared."""
    tolerance: float | None = None
    """What is allowed, absolute and relative to eager's answer."""
    refused: tuple[str, ...] = ()
    """What was refused as documented, in the words of the refusal."""
    latency_us: float | None = None
    """One call on the device by its compiler's count."""
    seconds: float = 0.0
    """What all of it took here."""


def row_of(name: str, show: Callable[[Engine], Shown], engine: Engine, note: str = "") -> Row:
    """Run an example. What it raises is the row's."""
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
