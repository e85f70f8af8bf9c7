"""Floors of the lowered model, and the standing of a run."""

from __future__ import annotations

from ..standing import Standing
from .measured import Run

MARK = 256
"""Timesteps at which the gain on padded data is compared with its floor."""

_TOLERATED = 1 / 1.1
"""The smallest accepted gain: a tenth slower."""


def standings(run: Run) -> list[Standing]:
    """Every floor, in the order of the report. The floor of the gain is for a CPU."""
    found = []
    if run.on_cpu:
        what = f"times faster than pack/unpack, forward and backward, setup B, T={MARK}"
        gains = [one.gain() for one in run.of("B", "forward and backward") if one.longest == MARK]
        found.append(Standing(what, gains[0] if gains else float("nan"), 10, 25))
    for setup, which, measured in run.lines():
        gain, longest = min((one.gain(), one.longest) for one in measured)
        what = f"times faster than pack/unpack, the worst: {which}, setup {setup} (T={longest})"
        found.append(Standing(what, gain, _TOLERATED, 1))
    return found
