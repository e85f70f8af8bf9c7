"""The staircase of an engine with a program for each bucket: every call has the shape of some bucket of the grid.

Rows stand longest first, so those alive at a time are the first ones of any stretch of them. A stretch is advanced by a
call over its first rows; the rows left over are a stretch of their own, which goes its own way in time, and so are the
rows still alive when the call has ended. Rows that end inside a chunk keep their state: chunk programs take lengths.
The least that a stretch can cost is the least, over the ways to begin it, of

    a call's cost + the least for the rows still alive at its end + the least for the rows left over

All stretches that can come up are found first, and priced from the last to the first. Few ways to begin are looked at,
and next to nothing is lost by it (`benchmarks/planning.py` compares):

- batch sizes: the largest of a cheapest cover of so many rows, for any of the chunk lengths;
- chunk lengths: the longest one at whose end no other batch size would do better, and each longer one, until calling
  again for the rows alive at its end is cheaper than any longer chunk;
- rows that will end without a change of batch size, and single rows: the cheapest series of chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .chunk_options import COST_UNIT, ChunkCosts, ChunkOptions, chunk_options, covers
from .cost import CostModel
from .errors import InvariantError, SequenceTooLong
from .plan import Plan, ProgramCall, longest_first
from .shapes import Bucket, BucketGrid

_TIMESTEP_PENALTIES = (2.0, 1.0)
_NOTHING, _WHOLE = 0, 1

_Call = tuple[ChunkCosts, int, int, list[int] | None]
"""A way to begin a stretch: the chunks; the stretch left over; the place of the first chunk looked at; for each chunk
looked at, the stretch that is alive at its end. None for the latter: a series of chunks, of as many timesteps as the
place would be."""


@dataclass(frozen=True)
class BucketedChunkPlanner:
    """Plans staircases over a grid of (batch, chunk length) buckets. Built once.

    `longest` is the longest sequence taken; chunks follow each other, so None is no limit. `head_cost` is what the
    head program costs, over buckets of length 1. A batch of more rows than the largest bucket has is cut, longest
    first, into stretches of as many.

    Measured costs are not exact, and computed timesteps are power. So of plans that cost at most `tolerance` more than
    the cheapest, one that computes fewer timesteps is taken: the cheapest where each timestep is charged twice the
    least that one costs in any bucket, or once, should that plan be beyond the tolerance. No plan costs more than a
    single bucket for all, where there is one.

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
    _calls: ChunkOptions = field(init=False, repr=False, compare=False)
    _whole: tuple[tuple[float, ...], ...] = field(init=False, repr=False, compare=False)
    """For each batch size and each length, the nanoseconds of the cheapest bucket that holds both."""
    _heads: tuple[Bucket, ...] = field(init=False, repr=False, compare=False)
    """For each number of rows, the largest bucket of the cheapest that hold them together."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "_calls", chunk_options(self.grid, self.cost, _TIMESTEP_PENALTIES))
        set_field(self, "_whole", _cheapest_holding(self.grid, self.cost))
        set_field(self, "_heads", _head_buckets(self.grid, self.head_cost))

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The staircases for requests of these lengths.

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
            stretch = tuple(rows[first : first + largest])
            runs += self._stairs(stretch, [lengths[row] for row in stretch])
            heads += self._head_runs(stretch)
        return Plan(tuple(runs), tuple(heads))

    def _stairs(self, rows: tuple[int, ...], lengths: list[int]) -> list[ProgramCall]:
        """The calls of rows that the largest bucket holds, the longest first."""
        stretches = _enumerate_states(lengths, self._calls)
        values = _least(stretches, self._calls.lone, price=0)
        cheapest, timesteps = divmod(values[_WHOLE], COST_UNIT)
        chosen = 0
        if timesteps > sum(lengths):
            limit = min(cheapest * (1 + self.tolerance), self._one_bucket(lengths))
            for price in range(1, len(self._calls.timestep_penalties)):
                charged = _least(stretches, self._calls.lone, price)
                total, timesteps = divmod(charged[_WHOLE], COST_UNIT)
                if total - self._calls.timestep_penalties[price] * timesteps <= limit:
                    values, chosen = charged, price
                    break
        return _PenalizedPlan(rows, lengths, stretches, self._calls.lone, values, chosen).runs()

    def _one_bucket(self, lengths: list[int]) -> float:
        place = bisect_left(self.grid.lengths, lengths[0])
        if place == len(self.grid.lengths):
            return float("inf")
        return self._whole[bisect_left(self.grid.batches, len(lengths))][place]

    def _head_runs(self, rows: tuple[int, ...]) -> list[ProgramCall]:
        runs = []
        start = 0
        while start < len(rows):
            bucket = self._heads[len(rows) - start]
            runs.append(ProgramCall(bucket, rows[start : start + bucket.batch]))
            start += bucket.batch
        return runs


class _StateTable(NamedTuple):
    """All that can come up in one batch. A stretch is known by a number; below 0, by a single row's timesteps left.

    The key of `rows` rows from row `first` on, alive at time `start`, is (start * base + first) * base + rows, where
    base is more than the rows of the batch. A stretch needs none with a smaller key.
    """

    base: int
    keys: list[int]
    """Of each stretch, from number 1 on."""
    calls: list[list[_Call]]
    """Of each, the ways to begin it."""
    order: list[int]
    """The numbers, those first that others need."""


def _enumerate_states(lengths: list[int], known: ChunkOptions) -> _StateTable:
    """All stretches that rows of these lengths, the longest first, can come to."""
    options, lone = known.options, len(known.lone.suffix_costs[0])
    alive = _alive(lengths)
    count = len(lengths)
    base = count + 1
    square = base * base
    keys = [count]
    numbers = {count: _WHOLE}
    all_calls: list[list[_Call]] = [[]]
    for key in keys:  # which grows
        place, rows = divmod(key, base)
        start, first = divmod(place, base)
        longest = lengths[first]
        calls: list[_Call] = []
        for chunks, taken, kept, begins, ladders in options[rows]:
            rest = 0
            if taken < rows:
                rest = _number(key + taken * count, numbers, keys)
            left = lengths[first + kept - 1] - start
            if left == longest - start and left < len(chunks.suffix_costs[0]):
                calls.append((chunks, rest, left, None))
                continue
            begin = begins[left] if left < len(begins) else begins[-1]
            ends: list[int] = []
            beyond = first + taken
            for length, enough in ladders[begin]:
                end = start + length
                if end >= longest:
                    ends.append(_NOTHING)
                    break
                last = alive[end]
                if last > beyond:  # noqa: PLR1730 - a call of min() takes as long as the rest of the loop
                    last = beyond
                if last == first + 1 and longest - end < lone:
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
            calls.append((chunks, rest, begin, ends))
        all_calls.append(calls)
    return _StateTable(base, keys, all_calls, [numbers[key] for key in sorted(keys, reverse=True)])


def _alive(lengths: list[int]) -> list[int]:
    """For each time before the longest row ends, the rows that have not ended."""
    alive: list[int] = []
    for row in range(len(lengths) - 1, -1, -1):
        if lengths[row] > len(alive):
            alive += [row + 1] * (lengths[row] - len(alive))
    return alive


def _number(key: int, numbers: dict[int, int], keys: list[int]) -> int:
    number = numbers.get(key)
    if number is None:
        keys.append(key)
        number = numbers[key] = len(keys)
    return number


def _least(stretches: _StateTable, lone: ChunkCosts, price: int) -> list[int]:
    """By number, the least weight of every stretch at this price, from its start to the end of its rows."""
    values = [0] * (len(stretches.keys) + 1)
    values += lone.suffix_costs[price][:0:-1]  # values[-left] is what a single row costs
    for number in stretches.order:
        best = -1
        for chunks, rest, begin, ends in stretches.calls[number]:
            if ends is None:
                least = chunks.suffix_costs[price][begin]
            else:
                weights = chunks.weights[price]
                least = -1
                place = begin
                for end in ends:
                    value = weights[place] + values[end]
                    if value < least or least < 0:
                        least = value
                    place += 1
            if rest:
                least += values[rest]
            if least < best or best < 0:
                best = least
        values[number] = best
    return values


class _PenalizedPlan(NamedTuple):
    """Stretches with what is needed to follow the least of them."""

    rows: tuple[int, ...]
    lengths: list[int]
    stretches: _StateTable
    lone: ChunkCosts
    values: list[int]
    price: int

    def runs(self) -> list[ProgramCall]:
        """The calls of the least weight for the whole batch."""
        runs: list[ProgramCall] = []
        base = self.stretches.base
        pending = [_WHOLE]
        while pending:
            number = pending.pop()
            place, count = divmod(self.stretches.keys[number - 1], base)
            start, first = divmod(place, base)
            chunks, rest, chunk, end = self._begun(number)
            taken = min(count, chunks.buckets[0][0].batch)
            if rest:
                pending.append(rest)
            if end is None:
                runs += self._series(chunks, chunk, first, taken, start)
                continue
            bucket = chunks.buckets[self.price][chunk]
            runs.append(ProgramCall(bucket, self.rows[first : first + taken], start))
            if end < 0:
                runs += self._series(self.lone, -end, first, 1, start + bucket.length)
            elif end > 0:
                pending.append(end)
        return runs

    def _begun(self, number: int) -> tuple[ChunkCosts, int, int, int | None]:
        """How the least begins: the chunks, the stretch left over, the place of the chunk and the stretch after it."""
        for chunks, rest, begin, ends in self.stretches.calls[number]:
            value = self.values[number] - (self.values[rest] if rest else 0)
            if ends is None:
                if chunks.suffix_costs[self.price][begin] == value:
                    return chunks, rest, begin, None
            else:
                for place, end in enumerate(ends, begin):
                    if chunks.weights[self.price][place] + self.values[end] == value:
                        return chunks, rest, place, end
        raise InvariantError("no way to begin a stretch costs what the cheapest does")

    def _series(self, chunks: ChunkCosts, left: int, first: int, taken: int, start: int) -> list[ProgramCall]:
        """The cheapest series of chunks until `left` timesteps have passed; rows that end are left out."""
        runs = []
        while left > 0:
            place = chunks.suffix_choice[self.price][left]
            while self.lengths[first + taken - 1] <= start:
                taken -= 1
            bucket = chunks.buckets[self.price][place]
            runs.append(ProgramCall(bucket, self.rows[first : first + taken], start))
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
    cost = cost or CostModel.proportional(heads)
    weights = {batch: max(1, round(cost.of(Bucket(batch, 1)) * 1e6)) * COST_UNIT + batch for batch in heads.batches}
    return tuple(Bucket(batch, 1) for _, batch in covers(heads.batches, weights, heads.batches[-1]))
