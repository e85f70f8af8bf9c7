"""Where the batch is cut in time: dead rows against calls.

A stretch is one call of a padded layer, over the rows alive at its first step. Those that end within it are computed to
the end of it for nothing. A further call costs something too: whatever it does beside computing rows, and it reads the
weights again and adds up their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Stretch(NamedTuple):
    """The steps from `begin` to before `end`."""

    begin: int
    end: int
    rows: int
    """Alive at the first step."""
    survivors: int
    """Alive at the step after the last one."""
    real: int
    """Timesteps that are no padding."""

    @property
    def steps(self) -> int:
        """How many there are."""
        return self.end - self.begin

    @property
    def full(self) -> bool:
        """Whether all rows live to the end."""
        return self.real == self.rows * self.steps


def price(weights: int) -> int:
    """What a call costs, in timesteps of a row, for a layer with so many weights; as measured.

    >>> price(4 * 32 * (16 + 32)), price(4 * 256 * (128 + 256))
    (1152, 144)
    """
    return 128 + 3 * 2**21 // weights


def largest(gates: int) -> int:
    """Timesteps of rows that one call may hold, for a layer with so many gates (4H in an LSTM).

    What is kept of them for the gradients, some 4 numbers for each gate, then stays below the 32 MiB from which on the
    C library asks the system for new memory each time: that takes as long as computing what is written there.

    >>> largest(4 * 32), largest(4 * 256)
    (8192, 1024)
    """
    return max(1, 2**20 // gates)


def stretches(alive: Sequence[int], price: int, largest: int) -> Iterator[Stretch]:
    """The cuts for rows of which `alive[t]` are alive at step t, never increasing.

    A cut is made as soon as the dead timesteps since the last one would cost as much as the call: so they never come to
    much more than twice what the best cuts cost. One is made too before a call becomes larger than `largest`.

    >>> [tuple(stretch) for stretch in stretches([4, 4, 4, 1, 1, 1], price=2, largest=100)]
    [(0, 3, 4, 1, 12), (3, 6, 1, 0, 3)]
    >>> [tuple(stretch)[:2] for stretch in stretches([4, 4, 4, 4], price=2, largest=9)]
    [(0, 2), (2, 4)]
    """
    begin, real = 0, 0
    for step, rows in enumerate(alive):
        first, steps = alive[begin], step - begin
        dead = first * (steps + 1) - real - rows
        if steps and (dead >= price or first * (steps + 1) > largest):
            yield Stretch(begin, step, first, rows, real)
            begin, real = step, 0
        real += rows
    yield Stretch(begin, len(alive), alive[begin], 0, real)
