"""Chunked plans for an engine with a program for each bucket: every call has a bucket's shape.

Rows are sorted longest first, so those active at a time are the first ones of any contiguous row group. A row group is
advanced by a call over its first rows; the remaining rows are a separate row group, planned independently in time,
and so are the rows still active when the call has ended. Rows that end inside a chunk keep their state: chunk programs
take lengths. The state of the dynamic program is a row group and a start time. The least cost of a state is the least,
over the ways to start it, of

    a call's cost + the least for the rows still active at its end + the least for the remaining rows

All reachable states are enumerated first, and evaluated from the last to the first. Few ways to start are considered;
plans hardly become more expensive by that:

- batch sizes: the largest of a cheapest cover of so many rows, for any of the chunk lengths; for the whole batch also
  those of the rows that last more than half as long as the longest row, which are then called apart from the others;
- chunk lengths: the longest one at whose end no other batch size would do better, and each longer one, until calling
  again for the rows active at its end is cheaper than any longer chunk;
- rows that will end without a change of batch size, and single rows: the cheapest sequence of chunks.

Chunk lengths whose sums meet rarely, such as 7, 61 and 199, reach hundreds of thousands of states with long sequences
and irregular costs. So the states of a batch are limited, and row groups beyond the limit are planned by
`greedy_chunks.py`, which considers each call once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .chunk_options import ChunkCosts, ChunkOptions, chunk_options, covers
from .chunk_states import WHOLE, StateTable, enumerate_states
from .cost import COST_UNIT, CostModel, bucket_costs
from .errors import InvariantError, SequenceTooLong
from .greedy_chunks import greedy_calls
from .plan import Plan, ProgramCall, longest_first
from .shapes import Bucket, BucketGrid

_TIMESTEP_PENALTIES = (2.0, 1.0)


@dataclass(frozen=True)
class BucketedChunkPlanner:
    """Planner of chunked execution over a grid of (batch, chunk length) buckets. Built once.

    `longest` is the longest sequence accepted; chunks follow each other, so None is no limit. `head_cost` is the cost
    of the head program, over buckets of length 1. A batch of more rows than the largest bucket has is cut, longest
    first, into row groups of as many.

    Measured costs are not exact, and computed timesteps take power. So of plans that cost at most `tolerance` more than
    the cheapest, one that computes fewer timesteps is taken. It is the cheapest plan with a penalty on each timestep of
    twice the least cost of a timestep in any bucket, or of once that cost, if the former plan is beyond the tolerance.
    No plan costs more than a single bucket for all rows, if there is one.

    A batch has at most `most_states` states. The row group that exceeds them, and those after it, are planned greedily:
    within a tenth of the cheapest plan on batches with so many states, without the tolerance for fewer timesteps. The
    limit counts states, not time, so a batch has the same plan on every host.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(16, 64))
    >>> for call in BucketedChunkPlanner(grid, CostModel.proportional(grid)).plan([13, 80, 16, 5]).calls:
    ...     print(call)
    ProgramCall(bucket=Bucket(batch=4, length=16), rows=(1, 2, 0, 3), start=0)
    ProgramCall(bucket=Bucket(batch=1, length=64), rows=(1,), start=16)
    """

    grid: BucketGrid
    cost: CostModel
    longest: int | None = None
    head_cost: CostModel | None = None
    tolerance: float = 0.05
    most_states: int = 2000
    _options: ChunkOptions = field(init=False, repr=False, compare=False)
    _single_bucket: tuple[tuple[Bucket, ...], ...] = field(init=False, repr=False, compare=False)
    """For each batch size and each length, the cheapest bucket that holds both."""
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
        calls: list[ProgramCall] = []
        heads: list[ProgramCall] = []
        states_left = self.most_states
        for first in range(0, len(rows), largest):
            group = tuple(rows[first : first + largest])
            own = [lengths[row] for row in group]
            states = enumerate_states(own, self._options, states_left)
            calls += self._greedy_calls(group, own) if states is None else self._exact_calls(group, own, states)
            states_left -= states_left if states is None else len(states.keys)
            heads += self._head_calls(group)
        return Plan(tuple(calls), tuple(heads))

    def _greedy_calls(self, rows: tuple[int, ...], lengths: list[int]) -> list[ProgramCall]:
        """Plan rows that the largest bucket holds, the longest first, in bounded work."""
        calls = greedy_calls(rows, lengths, self._options)
        single = self._single_bucket_for(lengths)
        if single is not None and self.cost.of(single) < sum(self.cost.of(call.bucket) for call in calls):
            return [ProgramCall(single, rows)]
        return calls

    def _exact_calls(self, rows: tuple[int, ...], lengths: list[int], states: StateTable) -> list[ProgramCall]:
        """Plan rows that the largest bucket holds, the longest first, by all their states."""
        single_row, penalties = self._options.single_row, self._options.timestep_penalties
        values = _least_costs(states, single_row, penalty=0)
        cheapest, timesteps = divmod(values[WHOLE], COST_UNIT)
        chosen = 0
        if timesteps > sum(lengths):
            single = self._single_bucket_for(lengths)
            most = float("inf") if single is None else self.cost.of(single) * 1e6
            limit = min(cheapest * (1 + self.tolerance), most)
            for penalty in range(1, len(penalties)):
                penalized = _least_costs(states, single_row, penalty)
                total, timesteps = divmod(penalized[WHOLE], COST_UNIT)
                if total - penalties[penalty] * timesteps <= limit:
                    values, chosen = penalized, penalty
                    break
        return _PenalizedPlan(rows, lengths, states, single_row, values, chosen).calls()

    def _single_bucket_for(self, lengths: list[int]) -> Bucket | None:
        index = bisect_left(self.grid.lengths, lengths[0])
        if index == len(self.grid.lengths):
            return None
        return self._single_bucket[bisect_left(self.grid.batches, len(lengths))][index]

    def _head_calls(self, rows: tuple[int, ...]) -> list[ProgramCall]:
        calls = []
        start = 0
        while start < len(rows):
            bucket = self._heads[len(rows) - start]
            calls.append(ProgramCall(bucket, rows[start : start + bucket.batch]))
            start += bucket.batch
        return calls


def _least_costs(states: StateTable, single_row: ChunkCosts, penalty: int) -> list[int]:
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
    states: StateTable
    single_row: ChunkCosts
    values: list[int]
    penalty: int

    def calls(self) -> list[ProgramCall]:
        """Return the calls of the least cost for the whole batch."""
        calls: list[ProgramCall] = []
        base = self.states.base
        pending = [WHOLE]
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
                calls += self._chunk_sequence(chunks, chunk, first, rows_called, start)
                continue
            bucket = chunks.buckets[self.penalty][chunk]
            calls.append(ProgramCall(bucket, self.rows[first : first + rows_called], start))
            if end < 0:
                calls += self._chunk_sequence(self.single_row, -end, first, 1, start + bucket.length)
            elif end > 0:
                pending.append(end)
        return calls

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
        calls = []
        while left > 0:
            index = chunks.suffix_choice[self.penalty][left]
            while self.lengths[first + rows_called - 1] <= start:
                rows_called -= 1
            bucket = chunks.buckets[self.penalty][index]
            calls.append(ProgramCall(bucket, self.rows[first : first + rows_called], start))
            start += bucket.length
            left -= bucket.length
        return calls


def _cheapest_holding(grid: BucketGrid, cost: CostModel) -> tuple[tuple[Bucket, ...], ...]:
    return tuple(
        tuple(
            min((one for one in grid.buckets if one.batch >= batch and one.length >= length), key=cost.of)
            for length in grid.lengths
        )
        for batch in grid.batches
    )


def _head_buckets(grid: BucketGrid, cost: CostModel | None) -> tuple[Bucket, ...]:
    heads = BucketGrid(grid.batches, (1,))
    costs = bucket_costs(cost or CostModel.proportional(heads), heads.buckets)
    by_batch = {bucket.batch: one for bucket, one in costs.items()}
    return tuple(Bucket(batch, 1) for _, batch in covers(heads.batches, by_batch, heads.batches[-1]))
