"""Chunked plans in bounded work: each call is chosen once, by its cost per unit of a lower bound.

A timestep of some active rows costs at least their rate: the least cost of batches that hold them, each at its least
cost per timestep over all chunk lengths. So rows cost at least the sum of the rates over their timesteps, whatever the
chunks. A call lowers this bound by the work that it does. It costs more than that where rows end within it, and where
its chunk is not the one with the least cost per timestep. Of the calls that can start a row group, the one is taken
for which

    its cost / the bound of the work it does * (the bound of its rows + the bound of the remaining rows)

is the least: the cost of the whole row group if all calls lost as much as this one. The ratio, not the difference,
because a short chunk loses little each time and is called often. The second factor grows if rows are run apart that
cost less together.

A call that ends no row is repeated until a row would end within it. On the way there, the ratios of longer chunks only
grow, as more rows have ended within them, and those of shorter ones stay. So the number of choices depends on the rows
and the chunk lengths, but not on the timesteps.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import NamedTuple

from .chunk_options import ChunkCosts, ChunkOptions
from .plan import ProgramCall


def greedy_calls(rows: tuple[int, ...], lengths: list[int], known: ChunkOptions) -> list[ProgramCall]:
    """Plan rows that the largest bucket holds, the longest first, with their lengths.

    At most rows x chunk lengths choices among batch sizes x chunk lengths, and one step for each call.
    """
    bound = _LowerBound(lengths, known.rates)
    calls: list[ProgramCall] = []
    pending = [(0, 0, len(rows))]  # start, first row, the row after the last
    while pending:
        start, first, beyond = pending.pop()
        if beyond - first == 1 and lengths[first] - start < len(known.single_row.suffix_costs[0]):
            calls += _single_row_calls(rows[first], start, lengths[first], known.single_row)
            continue
        call = _cheapest_call(start, first, beyond, known, bound)
        called = first + call.rows
        if called < beyond:
            pending.append((start, called, beyond))
        bucket = call.chunks.buckets[0][call.chunk]
        for _ in range(max(1, (lengths[called - 1] - start) // bucket.length)):
            calls.append(ProgramCall(bucket, rows[first:called], start))
            start += bucket.length
        active = bound.active(start, first, called)
        if active > first:
            pending.append((start, first, active))
    return calls


class _LowerBound:
    """Least integer cost of rows of these lengths, the longest first; `rates` as in `ChunkOptions`."""

    def __init__(self, lengths: list[int], rates: tuple[int, ...]) -> None:
        self.lengths = lengths
        self._rates = rates
        self._descending = [-length for length in lengths]
        self._tables: dict[int, list[int]] = {}

    def active(self, time: int, first: int, beyond: int) -> int:
        """Return the row after the last one, from `first` to before `beyond`, that has not ended."""
        return bisect_left(self._descending, -time, first, beyond)

    def of(self, time: int, first: int, beyond: int) -> int:
        """Return the bound for the rows from `first` to before `beyond`, all active at `time`."""
        if beyond <= first:
            return 0
        table = self._tables.get(first)
        if table is None:
            table = self._tables[first] = self._table(first)
        count = beyond - first
        return table[count] + self._rates[count] * (self.lengths[beyond - 1] - time)

    def _table(self, first: int) -> list[int]:
        """For each number of rows from `first` on, the bound after the end of the last of them."""
        table = [0, 0]
        for count in range(1, min(len(self.lengths) - first, len(self._rates) - 1)):
            last = first + count - 1
            table.append(table[-1] + self._rates[count] * (self.lengths[last] - self.lengths[last + 1]))
        return table


class _Call(NamedTuple):
    chunks: ChunkCosts
    chunk: int
    """Index in `chunks`."""
    rows: int


def _cheapest_call(start: int, first: int, beyond: int, known: ChunkOptions, bound: _LowerBound) -> _Call:
    """Return the first call of the rows from `first` to before `beyond`; of equal ones the longest."""
    left = bound.lengths[first] - start
    calls: list[tuple[float, int, _Call]] = []
    for option in known.options[beyond - first]:
        called = first + option.rows_called
        own, rest = bound.of(start, first, called), bound.of(start, called, beyond)
        for chunk, length in enumerate(option.chunks.lengths):
            end = start + length
            done = own - bound.of(end, first, bound.active(end, first, called))
            estimate = option.chunks.costs[0][chunk] / done * (own + rest)
            calls.append((estimate, -length, _Call(option.chunks, chunk, option.rows_called)))
            if length >= left:
                break
    return min(calls, key=itemgetter(0, 1))[2]


def _single_row_calls(row: int, start: int, end: int, chunks: ChunkCosts) -> list[ProgramCall]:
    """Return the cheapest sequence of chunks for one row."""
    calls = []
    while start < end:
        bucket = chunks.buckets[0][chunks.suffix_choice[0][end - start]]
        calls.append(ProgramCall(bucket, (row,), start))
        start += bucket.length
    return calls
