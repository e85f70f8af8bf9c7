"""Measured batches: sizes of LSTMs, and the lengths of their requests."""

from __future__ import annotations

import random
from dataclasses import dataclass

LONGEST = 330
"""Timesteps: the longest sequence that the benchmarks' archives take."""


@dataclass(frozen=True)
class Size:
    """The size of a stack of LSTM layers."""

    features: int
    hidden: int
    layers: int
    bidirectional: bool = False

    def __str__(self) -> str:
        directions = "bidirectional " if self.bidirectional else ""
        return f"{directions}{self.features}->{self.hidden} x{self.layers}"

    def flop(self, timesteps: int) -> int:
        """Count useful floating-point operations: the matrix products of the real timesteps.

        One layer of one direction with I inputs and H hidden units has 4H(I + H) weights; a layer after the first has
        the states of all directions of the one before as its inputs.

        >>> Size(2, 3, 1).flop(10), Size(2, 3, 1, bidirectional=True).flop(10), Size(2, 3, 2).flop(10)
        (1200, 2400, 2640)
        """
        directions = 2 if self.bidirectional else 1
        inputs = [self.features, *[directions * self.hidden] * (self.layers - 1)]
        return 2 * timesteps * sum(directions * 4 * self.hidden * (width + self.hidden) for width in inputs)


@dataclass(frozen=True)
class Case:
    """A model and its batches, answered one after the other; the total time counts."""

    name: str
    size: Size
    batches: tuple[tuple[int, ...], ...]
    """The lengths of each batch, in the order of the requests."""

    @property
    def flop(self) -> int:
        """Useful floating-point operations of all batches."""
        return self.size.flop(sum(sum(batch) for batch in self.batches))

    def __str__(self) -> str:
        return f"{self.size}, {self.name}"


def triangle(count: int, shortest: int = 13, longest: int = 128) -> tuple[int, ...]:
    """Return lengths equally spaced from the shortest to the longest, in a random but fixed order."""
    step = (longest - shortest) / (count - 1)
    lengths = [round(shortest + step * place) for place in range(count)]
    random.Random(count).shuffle(lengths)
    return tuple(lengths)


def log_normal(count: int, generator: random.Random) -> tuple[int, ...]:
    """Return lengths like those of texts and sessions: half below 20, 26 on average, few long ones."""
    return tuple(min(LONGEST, max(1, round(generator.lognormvariate(3.0, 0.7)))) for _ in range(count))


MIDDLE = Size(128, 256, 2)
_GENERATOR = random.Random(0)

CASES = (
    Case("B=32 triangle", MIDDLE, (triangle(32),)),
    Case("B=32 log-normal", MIDDLE, tuple(log_normal(32, _GENERATOR) for _ in range(8))),  # one says little
    Case("B=8 triangle", MIDDLE, (triangle(8),)),
    Case("B=32 triangle", Size(64, 128, 2), (triangle(32),)),
    Case("B=32 triangle", Size(128, 256, 2, bidirectional=True), (triangle(32),)),
    Case("one request of 20 timesteps", MIDDLE, ((20,),)),
)
