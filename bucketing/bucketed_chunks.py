"""Chunked plans for an engine with a program for each bucket: every call has a bucket's shape.

Rows are sorted longest first, so those active at a time are the first ones of any contiguous row group. A row group is
advanced by a call over its first rows; the remaining rows are a row group of their own, planned independently in time,
and so are the rows still active when the call has ended. Rows that end inside a chunk keep their state: chunk programs
take lengths. The state of the dynamic program is a row group and a start time. The least cost of a state is the least,
over the ways to start it, of

    a call's cost + the least for the rows still active at its end + the least for the remaining rows

All reachable states are enumerated first, and evaluated from the last to the first. Few ways to start are considered,
and next to nothing is lost by it (`benchmarks/planning.py` compares):

- batch sizes: the largest of a cheapest cover of so many rows, for any of the chunk lengths; for the whole batch also
  those of the rows that last more than half as long as the longest row, which are then called apart from the others;
- chunk lengths: the longest one at whose end no other batch size would do better, and each longer one, until calling
  again for the rows active at its end is cheaper than any longer chunk;
- rows that will end without a change of batch size, and single rows: the cheapest sequence of chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .chunk_options import CallOption, ChunkCosts, ChunkOptions, chunk_options, covers
from .cost import COST_UNIT, CostModel, bucket_costs
from .errors import InvariantError, SequenceTooLong
from .plan import Plan, ProgramCall, longest_first
from .shapes import Bucket, BucketGrid

_TIMESTEP_PENALTIES = (2.0, 1.0)
_NOTHING, _WHOLE = 0, 1

_Call = tuple[ChunkCosts, int, int, list[int] | None]
"""One way to start a state: the chunks.

The state of the remaining rows; the index of the first chunk considered; for each chunk considered, the state at its
end. None for the latter: the cheapest sequence of chunks, of as many timesteps as the index would be.
"""


@dataclass(frozen=True)
class BucketedChunkPlanner:
    """Planner of chunked execution over a grid of (batch, chunk length) buckets. Built once.

    `longest` is the longest sequence accepted; chunks follow each other, so None is no limit. `head_cost` is the cost
    of the head program, over buckets of length 1. A batch of more rows than the largest bucket has is cut, longest
    first, into row groups of as many.

    Measured costs are not exact, and computed timesteps take power. So of plans that cost at most `tolerance` more than
    the cheapest, one that computes fewer timesteps is taken: the cheapest with a penalty on each timestep of twice the
    least cost of one in any bucket, or of once that cost, if the former plan is beyond the tolerance. No plan costs
    more than a single bucket for all rows, if there is one.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(16, 64))
    >>> for run in BucketedChunkPlanner(grid, CostModel.proportional(grid)).plan([13, 80, 16, 5]).runs:
    ...     print(run)
    ProgramCall(bucket=Bucket(batch=4, length=16), rows=(1, 2, 0, 3), start=0)
    ProgramCall(bucket=Bucket(batch=1, length=64), rows=(1,), start=16)
    """

    grid: BucketGrid
    cost: CostModel
    longest: int | None = None
    head_cost: CostModel | None = None
    tolerance: float = 0.05
    _options: ChunkOptions = field(init=False, repr=False, compare=False)
    _single_bucket: tuple[tuple[float, ...], ...] = field(init=False, repr=False, compare=False)
    """For each batch size and each length, the nanoseconds of the cheapest bucket that holds both."""
    _heads: tuple[Bucket, ...] = field(init=False, repr=False, compare=False)
    """For each number of rows, the largest bucket of the cheapest that hold them together."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "_options", chunk_options(self.grid, self.cost, _TIMESTEP_PENALTIES))
        set_field(self, "_single_bucket", _cheapest_holding(self.grid, self.cost))
        set_field(self, "_heads", _head_buckets(self.grid, self.head_cost))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the chunked plan for requests of these lengths.

        Raises:
            SequenceTooLong: a length beyond the limit.
            ValueError: a length below 1.
        """
        rows = longest_first(lengths)
        if not rows:
            return Plan(())
        if self.longest is not None and lengths[rows[0]] > self.longest:
            raise SequenceTooLong(lengths[rows[0]], (self.longest,))
        largest = self.grid.batches[-1]
        runs: list[ProgramCall] = []
        heads: list[ProgramCall] = []
        for first in range(0, len(rows), largest):
            group = tuple(rows[first : first + largest])
            runs += self._chunk_runs(group, [lengths[row] for row in group])
            heads += self._head_runs(group)
        return Plan(tuple(runs), tuple(heads))

    def _chunk_runs(self, rows: tuple[int, ...], lengths: list[int]) -> list[ProgramCall]:
        """Plan rows that the largest bucket holds, the longest first."""
        states = _enumerate_states(lengths, self._options)
        single_row, penalties = self._options.single_row, self._options.timestep_penalties
        values = _least_costs(states, single_row, penalty=0)
        cheapest, timesteps = divmod(values[_WHOLE], COST_UNIT)
        chosen = 0
        if timesteps > sum(lengths):
            limit = min(cheapest * (1 + self.tolerance), self._single_bucket_cost(lengths))
            for penalty in range(1, len(penalties)):
                penalized = _least_costs(states, single_row, penalty)
                total, timesteps = divmod(penalized[_WHOLE], COST_UNIT)
                if total - penalties[penalty] * timesteps <= limit:
                    values, chosen = penalized, penalty
                    break
        return _PenalizedPlan(rows, lengths, states, single_row, values, chosen).runs()

    def _single_bucket_cost(self, lengths: list[int]) -> float:
        index = bisect_left(self.grid.lengths, lengths[0])
        if index == len(self.grid.lengths):
            return float("inf")
        return self._single_bucket[bisect_left(self.grid.batches, len(lengths))][index]

    def _head_runs(self, rows: tuple[int, ...]) -> list[ProgramCall]:
        runs = []
        start = 0
        while start < len(rows):
            bucket = self._heads[len(rows) - start]
            runs.append(ProgramCall(bucket, rows[start : start + bucket.batch]))
            start += bucket.batch
        return runs


class _StateTable(NamedTuple):
    """All states of one batch, by number. A number below 0 is a single row with so many timesteps left.

    The key of `rows` rows from row `first` on, active at time `start`, is (start * base + first) * base + rows, where
    base is more than the rows of the batch. A state depends only on states with larger keys.
    """

    base: int
    keys: list[int]
    """Keys of the states, from number 1 on."""
    calls: list[list[_Call]]
    """Ways to start each state."""
    order: list[int]
    """Numbers of the states, each after those it depends on."""


def _enumerate_states(lengths: list[int], known: ChunkOptions) -> _StateTable:
    """Enumerate the states that rows of these lengths, the longest first, can reach."""
    options, single_row = known.options, len(known.single_row.suffix_costs[0])
    active_at = _active_at(lengths)
    count = len(lengths)
    base = count + 1
    square = base * base
    keys = [count]
    numbers = {count: _WHOLE}
    all_calls: list[list[_Call]] = [[]]
    for key in keys:  # the list grows during the loop
        index, rows = divmod(key, base)
        start, first = divmod(index, base)
        longest = lengths[first]
        calls: list[_Call] = []
        considered = options[rows] if start or first else options[rows] + _long_rows_apart(active_at, options)
        for chunks, rows_called, min_active, first_chunk, candidate_chunks in considered:
            rest = 0
            if rows_called < rows:
                rest = _number(key + rows_called * count, numbers, keys)
            left = lengths[first + min_active - 1] - start
            if left == longest - start and left < len(chunks.suffix_costs[0]):
                calls.append((chunks, rest, left, None))
                continue
            first_index = first_chunk[left] if left < len(first_chunk) else first_chunk[-1]
            ends: list[int] = []
            beyond = first + rows_called
            for length, enough in candidate_chunks[first_index]:
                end = start + length
                if end >= longest:
                    ends.append(_NOTHING)
                    break
                last = active_at[end]
                if last > beyond:  # noqa: PLR1730 - a call of min() takes as long as the rest of the loop
                    last = beyond
                if last == first + 1 and longest - end < single_row:
                    ends.append(end - longest)
                else:
                    following = end * square + first * count + last
                    number = numbers.get(following)
                    if number is None:
                        keys.append(following)
                        number = numbers[following] = len(keys)
                    ends.append(number)
                if last - first <= enough:
                    break
            calls.append((chunks, rest, first_index, ends))
        all_calls.append(calls)
    return _StateTable(base, keys, all_calls, [numbers[key] for key in sorted(keys, reverse=True)])


def _active_at(lengths: list[int]) -> list[int]:
    """For each time before the longest row ends, the number of rows that have not ended."""
    active: list[int] = []
    for row in range(len(lengths) - 1, -1, -1):
        if lengths[row] > len(active):
            active += [row + 1] * (lengths[row] - len(active))
    return active


def _long_rows_apart(active_at: list[int], options: tuple[tuple[CallOption, ...], ...]) -> tuple[CallOption, ...]:
    """Return options that first call only the rows that last more than half as long as the longest row.

    They are considered for the whole batch alone: considered for every state, they make planning five times as slow and
    plans no better.
    """
    count, long = active_at[0], active_at[len(active_at) // 2]
    return tuple(
        option
        for option in options[long]
        if option.rows_called == long < count and option.chunks.buckets[0][0].batch < count
    )


def _number(key: int, numbers: dict[int, int], keys: list[int]) -> int:
    number = numbers.get(key)
    if number is None:
        keys.append(key)
        number = numbers[key] = len(keys)
    return number


def _least_costs(states: _StateTable, single_row: ChunkCosts, penalty: int) -> list[int]:
    """By number, the least cost of every state with this penalty, from its start to the end of its rows."""
    values = [0] * (len(states.keys) + 1)
    values += single_row.suffix_costs[penalty][:0:-1]  # values[-left] is the cost of a single row
    for number in states.order:
        best = -1
        for chunks, rest, first_index, ends in states.calls[number]:
            if ends is None:
                least = chunks.suffix_costs[penalty][first_index]
            else:
                costs = chunks.costs[penalty]
                least = -1
                index = first_index
                for end in ends:
                    value = costs[index] + values[end]
                    if value < least or least < 0:
                        least = value
                    index += 1
            if rest:
                least += values[rest]
            if least < best or best < 0:
                best = least
        values[number] = best
    return values


class _PenalizedPlan(NamedTuple):
    """States with their least costs, to be followed from the whole batch on."""

    rows: tuple[int, ...]
    lengths: list[int]
    states: _StateTable
    single_row: ChunkCosts
    values: list[int]
    penalty: int

    def runs(self) -> list[ProgramCall]:
        """Return the calls of the least cost for the whole batch."""
        runs: list[ProgramCall] = []
        base = self.states.base
        pending = [_WHOLE]
        while pending:
            number = pending.pop()
            index, count = divmod(self.states.keys[number - 1], base)
            start, first = divmod(index, base)
            chunks, rest, chunk, end = self._cheapest_call(number)
            rows_called = count
            if rest:
                rows_called -= self.states.keys[rest - 1] % base
                pending.append(rest)
            if end is None:
                runs += self._chunk_sequence(chunks, chunk, first, rows_called, start)
                continue
            bucket = chunks.buckets[self.penalty][chunk]
            runs.append(ProgramCall(bucket, self.rows[first : first + rows_called], start))
            if end < 0:
                runs += self._chunk_sequence(self.single_row, -end, first, 1, start + bucket.length)
            elif end > 0:
                pending.append(end)
        return runs

    def _cheapest_call(self, number: int) -> tuple[ChunkCosts, int, int, int | None]:
        """Return the chunks, the state of the remaining rows, the index of the chunk and the state after it."""
        for chunks, rest, first_index, ends in self.states.calls[number]:
            value = self.values[number] - (self.values[rest] if rest else 0)
            if ends is None:
                if chunks.suffix_costs[self.penalty][first_index] == value:
                    return chunks, rest, first_index, None
            else:
                for index, end in enumerate(ends, first_index):
                    if chunks.costs[self.penalty][index] + self.values[end] == value:
                        return chunks, rest, index, end
        raise InvariantError("no call of a state has the state's least cost")

    def _chunk_sequence(
        self, chunks: ChunkCosts, left: int, first: int, rows_called: int, start: int
    ) -> list[ProgramCall]:
        """Return the cheapest sequence of chunks of `left` timesteps; rows that have ended are left out."""
        runs = []
        while left > 0:
            index = chunks.suffix_choice[self.penalty][left]
            while self.lengths[first + rows_called - 1] <= start:
                rows_called -= 1
            bucket = chunks.buckets[self.penalty][index]
            runs.append(ProgramCall(bucket, self.rows[first : first + rows_called], start))
            start += bucket.length
            left -= bucket.length
        return runs


def _cheapest_holding(grid: BucketGrid, cost: CostModel) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(
            min(cost.of(bucket) for bucket in grid.buckets if bucket.batch >= batch and bucket.length >= length) * 1e6
            for length in grid.lengths
        )
        for batch in grid.batches
    )


def _head_buckets(grid: BucketGrid, cost: CostModel | None) -> tuple[Bucket, ...]:
    heads = BucketGrid(grid.batches, (1,))
    costs = bucket_costs(cost or CostModel.proportional(heads), heads.buckets)
    by_batch = {bucket.batch: one for bucket, one in costs.items()}
    return tuple(Bucket(batch, 1) for _, batch in covers(heads.batches, by_batch, heads.batches[-1]))
