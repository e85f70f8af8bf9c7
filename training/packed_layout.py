"""Which timesteps of a padded batch are real, and where each of them lies.

Packed data holds the real timesteps alone: all of step 0, then all of step 1, ..., in each the rows that are still
alive. Rows are sorted, longest first, so the rows alive at a step are always the first ones.

The batch is cut in time: dead rows against calls. A segment is one call of a padded layer, over the rows alive at its
first step. Those that end within it are computed to its end for nothing. A further call costs something too: whatever
it does beside computing rows, and it reads the weights again and adds up their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

_TAG = "_neuron_lstm_steps"


@dataclass(frozen=True)
class PackedLayout:
    """The real timesteps of a batch of B rows: T the longest row, N the sum of all."""

    active: tuple[int, ...]
    """The rows alive at each of the T steps: the `batch_sizes` of a PackedSequence."""
    _places: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, compare=False)

    @property
    def longest(self) -> int:
        """T."""
        return len(self.active)

    @property
    def rows(self) -> int:
        """B."""
        return self.active[0]

    @cached_property
    def count(self) -> int:
        """N."""
        return sum(self.active)

    @property
    def uniform(self) -> bool:
        """Whether all rows are of one length, so that packed data is padded data too."""
        return self.active[-1] == self.active[0]

    @cached_property
    def lengths(self) -> Tensor:
        """int64[B] on the CPU, descending.

        >>> PackedLayout((3, 2, 2, 1)).lengths
        tensor([4, 3, 1])
        """
        if self.uniform:
            return torch.full((self.rows,), self.longest)
        return _count_above(torch.tensor(self.active), self.rows)

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The step and the row, int64[N] each, of everything in packed data.

        >>> PackedLayout((3, 1)).positions(torch.device("cpu"))
        (tensor([0, 0, 0, 1]), tensor([0, 1, 2, 0]))
        """
        if device not in self._places:
            alive = torch.tensor(self.active).to(device, non_blocking=True)
            begins = alive.cumsum(0) - alive
            # Told the size, nobody waits for the device.
            step = torch.repeat_interleave(alive, output_size=self.count)
            self._places[device] = step, torch.arange(self.count, device=device) - begins[step]
        return self._places[device]

    def reversal(self, device: torch.device) -> Tensor:
        """Where the same row's timestep lies that is as far from its end as this one is from its beginning: int64[N].

        >>> PackedLayout((2, 2, 1)).reversal(torch.device("cpu"))
        tensor([4, 3, 2, 1, 0])
        """
        step, row = self.positions(device)
        alive, lengths = torch.tensor(self.active).to(device), self.lengths.to(device)
        return (alive.cumsum(0) - alive)[lengths[row] - 1 - step] + row

    def segment_indices(self, stretch: TimeSegment, device: torch.device) -> Tensor:
        """Where the real timesteps of a stretch lie in its padded [steps * rows, ...]."""
        before = sum(self.active[: stretch.start])
        step, row = (place[before : before + stretch.real_timesteps] for place in self.positions(device))
        return (step - stretch.start) * stretch.rows + row

    def last_indices(self, stretch: TimeSegment, device: torch.device) -> Tensor:
        """Where the last timesteps of the rows that end in a stretch lie in its padded [steps * rows, ...]."""
        rows = torch.arange(stretch.survivors, stretch.rows)
        return ((self.lengths[rows] - 1 - stretch.start) * stretch.rows + rows).to(device)


def batch_sizes_of(lengths: Tensor) -> Tensor:
    """The rows alive at each step, int64[T], of rows with these lengths, int64[B] descending from T.

    >>> batch_sizes_of(torch.tensor([4, 3, 1]))
    tensor([3, 2, 2, 1])
    """
    return _count_above(lengths, int(lengths[0]))


def packed_layout(batch_sizes: Tensor) -> PackedLayout:
    """What the `batch_sizes` of a PackedSequence say; read once, unless they are written to."""
    version = None if batch_sizes.is_inference() else batch_sizes._version
    known_version, steps = getattr(batch_sizes, _TAG, (None, None))
    if isinstance(steps, PackedLayout) and version == known_version:
        return steps
    steps = PackedLayout(tuple(batch_sizes.tolist()))
    setattr(batch_sizes, _TAG, (version, steps))
    return steps


def _count_above(descending: Tensor, until: int) -> Tensor:
    """For every number from 0 to `until`, how many of the values are above it."""
    return torch.searchsorted(-descending, -torch.arange(until))


class TimeSegment(NamedTuple):
    """The steps from `begin` to before `end`."""

    start: int
    end: int
    rows: int
    """Alive at the first step."""
    survivors: int
    """Alive at the step after the last one."""
    real_timesteps: int
    """Timesteps that are no padding."""

    @property
    def timesteps(self) -> int:
        """How many there are."""
        return self.end - self.start

    @property
    def full(self) -> bool:
        """Whether all rows live to the end."""
        return self.real_timesteps == self.rows * self.timesteps


def call_overhead(weights: int) -> int:
    """What a call costs, in timesteps of a row, for a layer with so many weights; as measured.

    >>> call_overhead(4 * 32 * (16 + 32)), call_overhead(4 * 256 * (128 + 256))
    (1152, 144)
    """
    return 128 + 3 * 2**21 // weights


def max_segment(gates: int) -> int:
    """Timesteps of rows that one call may hold, for a layer with so many gates (4H in an LSTM).

    What is kept of them for the gradients, some 4 numbers for each gate, then stays below the 32 MiB from which on the
    C library asks the system for new memory each time: that takes as long as computing what is written there.

    >>> max_segment(4 * 32), max_segment(4 * 256)
    (8192, 1024)
    """
    return max(1, 2**20 // gates)


def time_segments(alive: Sequence[int], price: int, largest: int) -> Iterator[TimeSegment]:
    """The cuts for rows of which `alive[t]` are alive at step t, never increasing.

    A cut is made as soon as the dead timesteps since the last one would cost as much as the call: so they never come to
    much more than twice what the best cuts cost. One is made too before a call becomes larger than `max_segment`.

    >>> [tuple(stretch) for stretch in time_segments([4, 4, 4, 1, 1, 1], price=2, largest=100)]
    [(0, 3, 4, 1, 12), (3, 6, 1, 0, 3)]
    >>> [tuple(stretch)[:2] for stretch in time_segments([4, 4, 4, 4], price=2, largest=9)]
    [(0, 2), (2, 4)]
    """
    begin, real = 0, 0
    for step, rows in enumerate(alive):
        first, steps = alive[begin], step - begin
        dead = first * (steps + 1) - real - rows
        if steps and (dead >= price or first * (steps + 1) > largest):
            yield TimeSegment(begin, step, first, rows, real)
            begin, real = step, 0
        real += rows
    yield TimeSegment(begin, len(alive), alive[begin], 0, real)
