"""Training of a packed model on a GPU: the experiment of docs/training.md, for its GPU column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from benchmarks.pack_unpack.contestants import Call, calls, check, contestants
from benchmarks.pack_unpack.experiment import BATCH, PASSES, SETUPS, Classifier, Pass, Setup, make_batch, varied
from benchmarks.pack_unpack.measured import MASKED, OURS, PACKED


@dataclass(frozen=True)
class Training:
    """One line of the table."""

    setup: Setup
    which: Pass
    longest: int


TRAININGS = tuple(
    Training(setup, which, longest) for longest in (32, 64, 128, 256) for setup in SETUPS for which in PASSES
)


def training_calls(one: Training, device: torch.device, rows: int = BATCH) -> Mapping[str, Call]:
    """Return one step of each contestant.

    Raises:
        WrongAnswers: their outputs or gradients differ.
    """
    torch.manual_seed(0)
    ways = contestants(Classifier().to(device), compiles=False)
    batch = make_batch(one.setup, one.longest, rows, device)
    check(ways, varied(batch))
    return calls(ways, batch, one.which)


TRAINING_HEADING = (
    "",
    f"| training, ms by CUDA events | T | {PACKED} | {MASKED} | {OURS} | speedup over packing |",
    "|---|---|---|---|---|---|",
)


def training_row(one: Training, milliseconds: Mapping[str, float]) -> str:
    """Return a line of the table.

    >>> training_row(Training("B", "forward", 32), {PACKED: 6.0, MASKED: 3.0, OURS: 2.0})
    '| B, forward | 32 | 6.00 | 3.00 | 2.00 | 3.00 |'
    """
    shown = " | ".join(f"{milliseconds[name]:.2f}" for name in (PACKED, MASKED, OURS))
    return f"| {one.setup}, {one.which} | {one.longest} | {shown} | {milliseconds[PACKED] / milliseconds[OURS]:.2f} |"
