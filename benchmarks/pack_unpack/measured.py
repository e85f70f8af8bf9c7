"""Results of one run, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from .experiment import PASSES, SETUPS, Pass, Setup

PACKED = "pack/unpack"
MASKED = "no pack, with mask"
OURS = "ours"
COMPILED = "ours, compiled"
CONTESTANTS = (PACKED, MASKED, OURS, COMPILED)


@dataclass(frozen=True)
class Measured:
    """One batch in one pass: the seconds of each contestant, one value for each round."""

    setup: Setup
    which: Pass
    longest: int
    seconds: Mapping[str, tuple[float, ...]]

    def took_ms(self, contestant: str) -> float:
        """Milliseconds: the median of the rounds."""
        return 1000 * median(self.seconds[contestant])

    def gain(self, contestant: str = OURS, over: str = PACKED) -> float:
        """Return the speed-up over another contestant: the median of the rounds' ratios."""
        pairs = zip(self.seconds[over], self.seconds[contestant], strict=True)
        return median(theirs / own for theirs, own in pairs)


@dataclass(frozen=True)
class Run:
    """A whole run."""

    device: str
    """The device, in words."""
    on_cpu: bool
    batch: int
    measured: tuple[Measured, ...]

    def of(self, setup: Setup, which: Pass) -> list[Measured]:
        """All lengths of a setup in a pass, ascending."""
        found = [one for one in self.measured if (one.setup, one.which) == (setup, which)]
        return sorted(found, key=lambda one: one.longest)

    def lines(self) -> list[tuple[Setup, Pass, Sequence[Measured]]]:
        """Every setup in every pass that was measured."""
        groups = [(setup, which, self.of(setup, which)) for setup in SETUPS for which in PASSES]
        return [group for group in groups if group[2]]
