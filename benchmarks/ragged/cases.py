"""Measured cases: models, and the lengths of their batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 330
"""Timesteps: the longest sequence that the benchmark's archives take."""


@dataclass(frozen=True)
class Size:
    """The size of an LSTM."""

    features: int
    hidden: int
    layers: int
    bidirectional: bool = False

    def __str__(self) -> str:
        directions = "bidirectional " if self.bidirectional else ""
        return f"{directions}{self.features}->{self.hidden} x{self.layers}"

    def flop(self, timesteps: int) -> int:
        """Useful floating-point operations: the matrix products of the real timesteps, two for each weight.

        One layer of one direction with I inputs and H hidden units has 4H(I + H) weights; a layer after the first has
        the states of all directions of the one before as its inputs.
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
    """Lengths equally spaced from the shortest to the longest, in a random but fixed order."""
    step = (longest - shortest) / (count - 1)
    lengths = [round(shortest + step * place) for place in range(count)]
    random.Random(count).shuffle(lengths)
    return tuple(lengths)


def log_normal(count: int, generator: random.Random, longest: int = LONGEST) -> tuple[int, ...]:
    """Lengths like those of texts and sessions: half below 20, 26 on average, few long ones."""
    return tuple(min(longest, max(1, round(generator.lognormvariate(3.0, 0.7)))) for _ in range(count))


def log_normal_batches(batches: int, count: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Several batches: a single batch of 32 says little about its distribution."""
    generator = random.Random(seed)
    return tuple(log_normal(count, generator) for _ in range(batches))


def with_longest(batch: Sequence[int], longest: int = LONGEST) -> tuple[int, ...]:
    """The same batch with its longest request replaced by one of the longest accepted length."""
    lengths = list(batch)
    lengths[lengths.index(max(lengths))] = longest
    return tuple(lengths)


MIDDLE = Size(128, 256, 2)
SMALL = Size(64, 128, 2)
BOTH_WAYS = Size(128, 256, 2, bidirectional=True)

_LOG_NORMAL = log_normal_batches(batches=8, count=32, seed=0)

TRIANGLE_32 = Case("B=32 triangle", MIDDLE, (triangle(32),))
LOG_NORMAL_32 = Case("B=32 log-normal", MIDDLE, _LOG_NORMAL)
TRIANGLE_8 = Case("B=8 triangle", MIDDLE, (triangle(8),))
SMALL_32 = Case("B=32 triangle", SMALL, (triangle(32),))
BOTH_WAYS_32 = Case("B=32 triangle", BOTH_WAYS, (triangle(32),))
ONE_LONG = Case("B=32 log-normal, one of 330", MIDDLE, (with_longest(_LOG_NORMAL[0]),))
LONE = Case("B=1 T=20", MIDDLE, ((20,),))

CASES = (TRIANGLE_32, LOG_NORMAL_32, TRIANGLE_8, SMALL_32, BOTH_WAYS_32, ONE_LONG, LONE)
