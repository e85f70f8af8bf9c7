"""Layout of packed data: positions of the real timesteps in a padded batch, and its time segments.

Packed data holds the real timesteps only: all of step 0, then all of step 1, ..., in each the rows that are still
active. Rows are sorted, longest first, so the rows active at a step are always the first ones.

The batch is cut in time, a trade-off between padding and calls. A time segment is one call of a padded layer, over the
rows active at its first step. Rows that end within it are padded to its end. A further call has a cost too: its
overhead, and it reads the weights again and accumulates their gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CPU = torch.device("cpu")
_HOST_TIMESTEPS = 2**15
"""Real timesteps of a batch up to which the host computes the indices of a GPU.

An index takes one copy then, in place of two to six operators, each of which takes the host longer to start.
"""

Integers: TypeAlias = NDArray[np.int64]
_Key = tuple[Hashable, torch.device]
"""Name of indices, and their device."""


@dataclass(frozen=True)
class PackedLayout:
    """Real timesteps of a batch of B rows: T those of the longest row, N the sum of all."""

    active: tuple[int, ...]
    """Number of rows active at each of the T steps: the `batch_sizes` of a PackedSequence."""
    _kept: dict[_Key, tuple[Tensor, ...]] = field(default_factory=dict, init=False, compare=False)
    """Indices that were computed on a device, by their names."""

    @property
    def longest(self) -> int:
        """T, the timesteps of the longest row."""
        return len(self.active)

    @property
    def rows(self) -> int:
        """B, the number of rows."""
        return self.active[0]

    @cached_property
    def count(self) -> int:
        """N, the number of real timesteps."""
        return sum(self.active)

    @property
    def uniform(self) -> bool:
        """Whether all rows have one length, so that packed data is padded data too."""
        return self.active[-1] == self.active[0]

    @cached_property
    def lengths(self) -> Tensor:
        """Lengths of the rows, int64[B] on the CPU, descending.

        >>> PackedLayout((3, 2, 2, 1)).lengths
        tensor([4, 3, 1])
        """
        if self.uniform:
            return torch.from_numpy(np.full(self.rows, self.longest))
        return torch.from_numpy(_count_above(np.array(self.active), self.rows))

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the step and the row of each element of packed data, int64[N] each.

        >>> PackedLayout((3, 1)).positions(torch.device("cpu"))
        (tensor([0, 0, 0, 1]), tensor([0, 1, 2, 0]))
        """
        step, row = self._once(("positions", device), lambda: _positions(*self._counts(device)[:2], self.count))
        return step, row

    def padded_indices(self, device: torch.device) -> Tensor:
        """Return the index of each element of packed data in the padded [T * B, ...], int64[N].

        >>> PackedLayout((3, 1)).padded_indices(torch.device("cpu"))
        tensor([0, 1, 2, 3])
        """
        return self._index(("padded",), device, lambda step, row: step * self.rows + row)

    def batch_first_indices(self, timesteps: int, device: torch.device) -> Tensor:
        """Return the index of each element of packed data in the padded [B * timesteps, ...], int64[N].

        >>> PackedLayout((3, 1)).batch_first_indices(2, torch.device("cpu"))
        tensor([0, 2, 4, 1])
        """
        return self._index(("batch first", timesteps), device, lambda step, row: row * timesteps + step)

    def reversal(self, device: torch.device) -> Tensor:
        """Return the index, int64[N], that reverses each row in packed data within its own length.

        >>> PackedLayout((2, 2, 1)).reversal(torch.device("cpu"))
        tensor([4, 3, 2, 1, 0])
        """

        def reversal(step: Tensor, row: Tensor) -> Tensor:
            _, starts, lengths = self._counts(step.device)
            return starts[lengths[row] - 1 - step] + row

        return self._index(("reversal",), device, reversal)

    def segment_indices(self, segment: TimeSegment, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the indices of a segment's real timesteps in its padded [timesteps * rows, ...].

        The second tensor has those of the last timesteps of rows that end in it.
        """
        real, last = self._indices(("segment", segment), device, lambda at: self._segment_indices(segment, at))
        if segment.real_timesteps == self.count:  # unpacking takes the same index, without another copy
            self._kept.setdefault((("padded",), device), (real,))
        return real, last

    def _index(self, name: Hashable, device: torch.device, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return an index on a device, computed of the step and the row of each element."""
        (index,) = self._indices(name, device, lambda at: (compute(*self.positions(at)),))
        return index

    def _indices(
        self, name: Hashable, device: torch.device, compute: Callable[[torch.device], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Return indices on a device, computed once: there, or on the host for few timesteps of a GPU."""
        if device.type != "cpu" and self.count <= _HOST_TIMESTEPS:
            return self._once((name, device), lambda: _copied_together(compute(_CPU), device))
        return self._once((name, device), lambda: compute(device))

    def _counts(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """`active`, int64[T], the first element of each step, int64[T], and the lengths, int64[B], on a device."""

        def counts() -> tuple[Tensor, ...]:
            of_step = np.array(self.active)
            first = of_step.cumsum() - of_step
            return _copied_together((torch.from_numpy(of_step), torch.from_numpy(first), self.lengths), device)

        active, starts, lengths = self._once(("counts", device), counts)
        return active, starts, lengths

    def _once(self, key: _Key, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if key not in self._kept:
            with torch.inference_mode(False):  # autograd may save them: they outlive the mode in which they are made
                self._kept[key] = compute()
        return self._kept[key]

    def _segment_indices(self, segment: TimeSegment, device: torch.device) -> tuple[Tensor, Tensor]:
        before = sum(self.active[: segment.start])
        step, row = (index[before : before + segment.real_timesteps] for index in self.positions(device))
        _, _, lengths = self._counts(device)
        ended = torch.arange(segment.survivors, segment.rows, device=device)
        last = lengths[segment.survivors : segment.rows] - 1 - segment.start
        return (step - segment.start) * segment.rows + row, last * segment.rows + ended


def copied_from_host(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device. The host does not wait for the work of a GPU before the copy.

    On a CPU it is the tensor itself.
    """
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _copied_together(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Copy tensors [N] of the CPU to a device, in one copy."""
    if device.type == "cpu":
        return tensors
    together = copied_from_host(torch.cat(tensors), device)
    return torch.split(together, [len(tensor) for tensor in tensors])


def batch_sizes_of(lengths: Integers) -> Tensor:
    """Return the number of active rows at each step, int64[T], for lengths that descend from T.

    >>> batch_sizes_of(np.array([4, 3, 1]))
    tensor([3, 2, 2, 1])
    """
    return torch.from_numpy(_count_above(lengths, int(lengths[0])))


def packed_layout(batch_sizes: Tensor) -> PackedLayout:
    """Return the layout for the `batch_sizes` of a PackedSequence; cached until they are written to."""
    version, key = None if batch_sizes.is_inference() else batch_sizes._version, id(batch_sizes)
    known = _layouts.get(key)
    if known is not None and known.tensor() is batch_sizes and known.version == version:
        return known.layout
    layout, forget = PackedLayout(tuple(batch_sizes.tolist())), _layouts.pop
    _layouts[key] = _Known(weakref.ref(batch_sizes, lambda _: forget(key, None)), version, layout)
    return layout


class _Known(NamedTuple):
    """Layout of a tensor that still exists."""

    tensor: weakref.ref[Tensor]
    version: int | None
    layout: PackedLayout


# By identity, and not as an attribute of the tensor: torch would save and copy attributes with it.
_layouts: dict[int, _Known] = {}


def _count_above(descending: Integers, until: int) -> Integers:
    """For every number from 0 to `until`, the number of values above it.

    >>> _count_above(np.array([4, 3, 1]), 4)
    array([3, 2, 2, 1])
    """
    return np.searchsorted(-descending, -np.arange(until))


def _positions(active: Tensor, starts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if active.device == _CPU:
        # torch's function wakes all threads also for a few elements, which takes much longer than the elements.
        times, first = active.numpy(), starts.numpy()
        of_element = np.repeat(np.arange(len(times)), times)
        return torch.from_numpy(of_element), torch.from_numpy(np.arange(count) - np.repeat(first, times))
    # With output_size given, the host does not wait for the device.
    step = torch.repeat_interleave(active, output_size=count)
    return step, torch.arange(count, device=active.device) - starts[step]


class TimeSegment(NamedTuple):
    """Steps from `start` to before `end`, computed by one call."""

    start: int
    end: int
    rows: int
    """Number of rows active at the first step."""
    survivors: int
    """Number of rows active at the step after the last one."""
    real_timesteps: int
    """Number of timesteps that are not padding."""

    @property
    def timesteps(self) -> int:
        """Number of steps."""
        return self.end - self.start

    @property
    def full(self) -> bool:
        """Whether all rows are active to the end."""
        return self.real_timesteps == self.rows * self.timesteps


def time_segments(active: Sequence[int], overhead: int, most: int) -> Iterator[TimeSegment]:
    """Cut a batch of which `active[t]` rows, never increasing, are active at step t.

    A cut is made as soon as the padding since the last one would cost as much as a call (`overhead`): so the cost is
    never much more than twice that of the best cuts. A cut is also made before a call exceeds `most` timesteps of rows.

    >>> [tuple(segment) for segment in time_segments([4, 4, 4, 1, 1, 1], overhead=2, most=100)]
    [(0, 3, 4, 1, 12), (3, 6, 1, 0, 3)]
    >>> [tuple(segment)[:2] for segment in time_segments([4, 4, 4, 4], overhead=2, most=9)]
    [(0, 2), (2, 4)]
    """
    start, real = 0, 0
    for step, rows in enumerate(active):
        first, steps = active[start], step - start
        padding = first * (steps + 1) - real - rows
        if steps and (padding >= overhead or first * (steps + 1) > most):
            yield TimeSegment(start, step, first, rows, real)
            start, real = step, 0
        real += rows
    yield TimeSegment(start, len(active), active[start], 0, real)
