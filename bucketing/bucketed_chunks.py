"""Chunked plans for an engine with a program for each bucket: every call has a bucket's shape.

Rows are sorted longest first, so those active at a time are the first ones of any contiguous row group. A row group is
advanced by a call over its first rows; the remaining rows are a separate row group, planned independently in time,
and so are the rows still active when the call has ended. Rows that end inside a chunk keep their state: chunk programs
take lengths. A state is a row group and a time. The least cost of a state is the least, over the calls that can start
it, of

    a call's cost + the least for the rows still active at its end + the least for the remaining rows

Few calls are considered:

- batch sizes: the largest of a cheapest cover of all rows, or of those that outlast a shortest chunk, for any length;
- chunk lengths: the longest one at whose end no other batch size would do better, repeated until one could, and each
  longer one;
- rows that end together: the cheapest sequence of chunks of a batch size; for a single row, of any.

Chunk lengths whose sums meet rarely, such as 7, 61 and 199, reach hundreds of thousands of states with long sequences
and irregular costs. So the states of a batch are limited. Beyond the limit each state considers only its two likeliest
calls, or the likeliest one. They are found by a lower bound: a timestep of some active rows costs at least their rate,
the least cost of batches that hold them, each at its least cost per timestep. So rows cost at least the sum of the
rates over their timesteps, whatever the chunks. A call lowers this bound by the work that it does. It costs more than
that where rows end within it, and where its chunk is not the one with the least cost per timestep. The likeliest call
is the one for which

    its cost / the bound of the work it does * (the bound of its rows + the bound of the remaining rows)

is the least: the cost of the whole row group if all calls lost as much as this one. The ratio, not the difference,
because a short chunk loses little each time and is called often. The second factor grows if rows are run apart that
cost less together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from .cost import CostModel, bucket_costs
from .errors import SequenceTooLong
from .plan import Plan, ProgramCall, longest_first
from .shapes import Bucket, BucketGrid

_LIKELIEST = (None, 2, 1)
"""Candidates of each state: all, or fewer where they reach too many states."""
_MOST_STATES = 300
"""States of a batch, some 10 ms. The least number of candidates has no limit."""
_NEVER = 1 << 200
"""Integer cost beyond that of every plan."""


class BucketedChunkPlanner:
    """Planner of chunked execution over a grid of (batch, chunk length) buckets. Built once.

    `longest` is the longest sequence accepted; chunks follow each other, so None is no limit. `head_cost` is the cost
    of the head program, over buckets of length 1. A batch of more rows than the largest bucket has is cut, longest
    first, into row groups of as many.

    No plan costs more than a single bucket for all rows, if there is one. `most_states` limits the work for a batch: it
    counts states, not time, so a batch has the same plan on every host.

    >>> grid = BucketGrid(batches=(1, 4), lengths=(16, 64))
    >>> for call in BucketedChunkPlanner(grid, CostModel.proportional(grid)).plan([13, 80, 16, 5]).calls:
    ...     print(call)
    ProgramCall(bucket=Bucket(batch=4, length=16), rows=(1, 2, 0, 3), start=0)
    ProgramCall(bucket=Bucket(batch=1, length=64), rows=(1,), start=16)
    """

    def __init__(
        self,
        grid: BucketGrid,
        cost: CostModel,
        longest: int | None = None,
        head_cost: CostModel | None = None,
        most_states: int = _MOST_STATES,
    ) -> None:
        self.grid, self.cost, self.longest, self.most_states = grid, cost, longest, most_states
        self._options = _compute_options(grid, bucket_costs(cost, grid.buckets))
        self._heads = _head_buckets(grid, head_cost)
        """For each number of rows, the largest bucket of the cheapest that hold them together."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the chunked plan for requests of these lengths."""
        rows = longest_first(lengths)
        if not rows:
            return Plan(())
        if self.longest is not None and lengths[rows[0]] > self.longest:
            raise SequenceTooLong(lengths[rows[0]], (self.longest,))
        largest = self.grid.batches[-1]
        groups = [tuple(rows[first : first + largest]) for first in range(0, len(rows), largest)]
        calls: list[ProgramCall] = []
        states = 0
        for group in groups:
            search = _Search([lengths[row] for row in group], self._options, self.most_states - states)
            calls += self._cheaper_than_one_bucket(search.calls(group), group, search.lengths[0])
            states += search.states
        return Plan(tuple(calls), tuple(call for group in groups for call in self._head_calls(group)))

    def _cheaper_than_one_bucket(
        self, calls: list[ProgramCall], rows: tuple[int, ...], longest: int
    ) -> list[ProgramCall]:
        """Return the calls, or one for all rows if that is cheaper."""
        holding = [bucket for bucket in self.grid.buckets if bucket.batch >= len(rows) and bucket.length >= longest]
        if holding:
            bucket = min(holding, key=self.cost.of)
            if self.cost.of(bucket) < sum(self.cost.of(call.bucket) for call in calls):
                return [ProgramCall(bucket, rows)]
        return calls

    def _head_calls(self, rows: tuple[int, ...]) -> list[ProgramCall]:
        calls = []
        start = 0
        while start < len(rows):
            bucket = self._heads[len(rows) - start]
            calls.append(ProgramCall(bucket, rows[start : start + bucket.batch]))
            start += bucket.batch
        return calls


_UntilEnd = tuple[tuple[int, Bucket], ...]
"""Cheapest chunks by number of timesteps, up to twice the longest chunk: their cost, and the first of them."""


class _Option(NamedTuple):
    """One way to start a row group: calls of one batch size, for all rows or the longest of them."""

    rows_called: int
    """Number of rows that are called; any others are a separate row group."""
    min_active: int
    """Number of these rows that must be active for no other batch size to be better."""
    lengths: tuple[int, ...]
    chunks: tuple[tuple[Bucket, int], ...]
    """Chunks of the batch size, and their costs, by length, ascending: those that no others replace for less."""
    until_end: _UntilEnd


class _Options(NamedTuple):
    """All calls that a planner considers, computed once for the grid and its costs."""

    of_rows: tuple[tuple[_Option, ...], ...]
    """By number of rows, from 0 to the largest batch size."""
    single_row: _UntilEnd
    """For a single row: chunks of any batch size."""
    rates: tuple[int, ...]
    """By number of rows, the least cost of a timestep: of batches that hold them, in any chunk length."""


_State = tuple[int, int, int]
"""A row group at a time: the time, the first row, the row after the last. All its rows are active."""


class _Candidate(NamedTuple):
    """A call that can start a row group, as often as it is repeated."""

    cost: int
    bucket: Bucket
    repeated: int
    called: int
    """The row after the last that it calls."""
    following: tuple[_State, ...]
    """The row groups that remain."""
    until_end: _UntilEnd = ()
    """If the rows that decide end together: the chunks up to there, in place of the repeated call."""


class _Search:
    """Search for the calls of rows that the largest bucket holds, the longest first."""

    def __init__(self, lengths: list[int], options: _Options, most_states: int) -> None:
        self.lengths = lengths
        self.states = 0
        self._options = options
        self._most_states = most_states
        self._descending = [-length for length in lengths]
        self._bounds: dict[int, list[int]] = {}

    def calls(self, rows: tuple[int, ...]) -> list[ProgramCall]:
        """Return the calls for these rows."""
        whole = (0, 0, len(rows))
        chosen = self._choices(whole)
        calls: list[ProgramCall] = []
        pending = [whole]
        while pending:
            state = pending.pop()
            start, first, _ = state
            candidate = chosen[state]
            for time, bucket in self._chunks(start, first, candidate):
                active = bisect_left(self._descending, -time, first, candidate.called)
                calls.append(ProgramCall(bucket, rows[first:active], time))
            pending += candidate.following
        return calls

    def _chunks(self, start: int, first: int, candidate: _Candidate) -> Iterator[tuple[int, Bucket]]:
        """Yield the first timestep and the bucket of each call of a candidate."""
        if not candidate.until_end:
            for call in range(candidate.repeated):
                yield start + call * candidate.bucket.length, candidate.bucket
            return
        while start < self.lengths[first]:
            _, bucket = candidate.until_end[self.lengths[first] - start]
            yield start, bucket
            start += bucket.length

    def _choices(self, whole: _State) -> dict[_State, _Candidate]:
        """Return the cheapest candidate of each state that they reach."""
        states = next(filter(None, (self._reachable(whole, likeliest) for likeliest in _LIKELIEST)))
        self.states = len(states)
        least: dict[_State, int] = {}
        chosen: dict[_State, _Candidate] = {}
        for state in sorted(states, key=itemgetter(0, 1), reverse=True):  # a state depends on later times and rows
            lowest = -1
            for candidate in states[state]:
                cost = candidate.cost
                for following in candidate.following:
                    cost += least[following]
                if cost < lowest or lowest < 0:
                    lowest = cost
                    chosen[state] = candidate
            least[state] = lowest
        return chosen

    def _reachable(self, whole: _State, likeliest: int | None) -> dict[_State, list[_Candidate]]:
        """Return all states that so many candidates of each reach, with these; nothing if there are too many."""
        states: dict[_State, list[_Candidate]] = {whole: []}
        pending = [whole]
        for state in pending:  # the list grows during the loop
            candidates = self._candidates(state)
            if likeliest is not None and len(candidates) > likeliest:
                candidates = sorted(candidates, key=partial(self._estimate, state))[:likeliest]
            states[state] = candidates
            for candidate in candidates:
                for following in candidate.following:
                    if following not in states:
                        states[following] = []
                        pending.append(following)
            if len(pending) > self._most_states and likeliest != 1:
                return {}
        return states

    def _candidates(self, state: _State) -> list[_Candidate]:
        start, first, beyond = state
        lengths, descending = self.lengths, self._descending
        remaining = lengths[first] - start
        if beyond - first == 1 and remaining < len(self._options.single_row):
            return [_until_end(self._options.single_row, remaining, beyond, ())]
        candidates, of_rows = [], self._options.of_rows
        outlasting = bisect_left(descending, -start - of_rows[1][0].lengths[0], first, beyond) - first
        options = {option.rows_called: option for rows in (outlasting, beyond - first) for option in of_rows[rows]}
        for rows_called, min_active, chunk_lengths, chunks, until_end in options.values():
            called = first + rows_called
            rest = ((start, called, beyond),) if called < beyond else ()
            change = lengths[first + min_active - 1] - start
            if change == remaining < len(until_end):
                candidates.append(_until_end(until_end, remaining, called, rest))
                continue
            index = max(0, bisect_right(chunk_lengths, change) - 1)
            repeated = max(1, change // chunk_lengths[index])
            if change == remaining:  # as often as is needed for `until_end` to have the rest
                repeated = min(repeated, -((len(until_end) - 1 - remaining) // chunk_lengths[index]))
            for bucket, cost in chunks[index:]:
                end = start + repeated * bucket.length
                if end >= lengths[first]:
                    candidates.append(_Candidate(repeated * cost, bucket, repeated, called, rest))
                    break
                active = bisect_left(descending, -end, first, called)
                candidates.append(_Candidate(repeated * cost, bucket, repeated, called, (*rest, (end, first, active))))
                repeated = 1
        return candidates

    def _estimate(self, state: _State, candidate: _Candidate) -> float:
        """Estimate the cost of the row group if all calls lose as much as this one."""
        start, first, beyond = state
        bound = self._bound(start, first, candidate.called)
        repeated_end = start + candidate.bucket.length * candidate.repeated
        end = self.lengths[first] if candidate.until_end else repeated_end
        done = bound - self._bound(end, first, bisect_left(self._descending, -end, first, candidate.called))
        return candidate.cost / done * (bound + self._bound(start, candidate.called, beyond))

    def _bound(self, time: int, first: int, beyond: int) -> int:
        """Return the least cost of the rows from `first` to before `beyond`, all active at `time`."""
        if beyond <= first:
            return 0
        table = self._bounds.get(first)
        if table is None:
            table = self._bounds[first] = self._bounds_from(first)
        count = beyond - first
        return table[count] + self._options.rates[count] * (self.lengths[beyond - 1] - time)

    def _bounds_from(self, first: int) -> list[int]:
        """For each number of rows from `first` on, the bound after the end of the last of them."""
        table = [0, 0]
        for last in range(first, len(self.lengths) - 1):
            rate = self._options.rates[last - first + 1]
            table.append(table[-1] + rate * (self.lengths[last] - self.lengths[last + 1]))
        return table


def _until_end(table: _UntilEnd, timesteps: int, called: int, following: tuple[_State, ...]) -> _Candidate:
    cost, bucket = table[timesteps]
    return _Candidate(cost, bucket, 1, called, following, table)


def _compute_options(grid: BucketGrid, costs: Mapping[Bucket, int]) -> _Options:
    chunks = {batch: _worthwhile(grid, batch, costs) for batch in grid.batches}
    ends = {batch: _cheapest_chunks([bucket for bucket, _ in chunks[batch]], costs) for batch in grid.batches}
    cheapest = [min((Bucket(batch, n) for batch in grid.batches), key=costs.__getitem__) for n in grid.lengths]
    firsts: list[set[int]] = [set() for _ in range(grid.batches[-1] + 1)]
    for length in grid.lengths:
        of_batch = {batch: costs[Bucket(batch, length)] for batch in grid.batches}
        for rows, (_, batch) in enumerate(_covers(of_batch, grid.batches[-1])):
            if rows:
                firsts[rows].add(batch)
    rates = {batch: min(costs[Bucket(batch, length)] // length for length in grid.lengths) for batch in grid.batches}
    return _Options(
        tuple(
            tuple(_option(rows, batch, chunks[batch], ends[batch], firsts) for batch in sorted(batches, reverse=True))
            for rows, batches in enumerate(firsts)
        ),
        _cheapest_chunks(cheapest, costs),
        tuple(rate for rate, _ in _covers(rates, grid.batches[-1])),
    )


def _option(
    rows: int, batch: int, chunks: tuple[tuple[Bucket, int], ...], until_end: _UntilEnd, firsts: Sequence[set[int]]
) -> _Option:
    rows_called = min(rows, batch)
    min_active = rows_called
    while min_active > 2 and firsts[min_active - 1] == {batch}:
        min_active -= 1
    return _Option(rows_called, min_active, tuple(bucket.length for bucket, _ in chunks), chunks, until_end)


def _worthwhile(grid: BucketGrid, batch: int, costs: Mapping[Bucket, int]) -> tuple[tuple[Bucket, int], ...]:
    """Return the chunks which neither shorter ones nor a longer one can replace at a lower cost."""
    chunks = [(Bucket(batch, length), costs[Bucket(batch, length)]) for length in grid.lengths]
    sums = [0] + [_NEVER] * grid.lengths[-1]  # the least cost of chunks of exactly so many timesteps
    for total in range(grid.lengths[0], len(sums)):
        sums[total] = min(cost + sums[total - bucket.length] for bucket, cost in chunks if bucket.length <= total)
    worthwhile: list[tuple[Bucket, int]] = []
    for bucket, cost in reversed(chunks):
        if (not worthwhile or cost < worthwhile[-1][1]) and cost <= sums[bucket.length]:
            worthwhile.append((bucket, cost))
    return tuple(reversed(worthwhile))


def _cheapest_chunks(buckets: Sequence[Bucket], costs: Mapping[Bucket, int]) -> _UntilEnd:
    table = [(0, 0, buckets[0])]
    for total in range(1, 2 * buckets[-1].length + 1):
        table.append(
            min((costs[bucket] + table[max(0, total - bucket.length)][0], -bucket.length, bucket) for bucket in buckets)
        )
    return tuple((cost, bucket) for cost, _, bucket in table)


def _covers(costs: Mapping[int, int], most: int) -> list[tuple[int, int]]:
    """Compute, for 0 to `most` rows, the least cost of batches that hold them, and the largest batch.

    >>> _covers({1: 10, 4: 25}, most=6)
    [(0, 0), (10, 1), (20, 1), (25, 4), (25, 4), (35, 4), (45, 4)]
    """
    table = [(0, 0)]
    for rows in range(1, most + 1):
        cost, negative = min((cost + table[max(0, rows - batch)][0], -batch) for batch, cost in costs.items())
        table.append((cost, -negative))
    return table


def _head_buckets(grid: BucketGrid, cost: CostModel | None) -> tuple[Bucket, ...]:
    heads = BucketGrid(grid.batches, (1,))
    costs = bucket_costs(cost or CostModel.proportional(heads), heads.buckets)
    table = _covers({bucket.batch: integer for bucket, integer in costs.items()}, heads.batches[-1])
    return tuple(Bucket(batch, 1) for _, batch in table)
