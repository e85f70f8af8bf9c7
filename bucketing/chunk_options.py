"""What a staircase over a grid may call, worked out once for the grid and its costs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .cost import CostModel
from .shapes import Bucket, BucketGrid

COST_UNIT = 1 << 40  # more than any plan's sum of B x T

CostTable = Mapping[Bucket, int]
"""Of each bucket: nanoseconds, then B x T, as one whole number: the order of plans, exact under addition."""


class ChunkCosts(NamedTuple):
    """The chunks for some rows, by chunk length, ascending. What depends on a price has one entry for each price."""

    lengths: tuple[int, ...]
    buckets: tuple[tuple[Bucket, ...], ...]
    weights: tuple[tuple[int, ...], ...]
    suffix_costs: tuple[tuple[int, ...], ...]
    """tails[price][d]: the least weight of chunks that last d timesteps or more together; d up to twice the longest."""
    suffix_choice: tuple[tuple[int, ...], ...]
    """series[price][d]: the place of the first of these chunks."""


class CallOption(NamedTuple):
    """One way to begin a stretch of some number of rows: all or the longest of them, in calls of one batch size."""

    calls: ChunkCosts
    taken: int
    """The rows that are called; any others are a stretch of their own."""
    kept: int
    """While at least so many of these are alive, no other batch size would be better."""
    begins: tuple[int, ...]
    """begins[d]: the place of the longest chunk of at most d timesteps, or of the shortest; d up to the longest."""
    candidate_chunks: tuple[tuple[tuple[int, int], ...], ...]
    """ladders[place]: the chunks from that place on, as their length and the number of rows alive at their end with
    which calling again is cheaper than any longer chunk."""


class ChunkOptions(NamedTuple):
    """All calls that a planner looks at."""

    options: tuple[tuple[CallOption, ...], ...]
    """By number of rows, from 0, which has none, to the largest batch size."""
    lone: ChunkCosts
    """For a single row: each length in its cheapest bucket."""
    timestep_penalties: tuple[int, ...]
    """Nanoseconds that a computed timestep is charged beside its cost; the first is 0."""


def chunk_options(grid: BucketGrid, cost: CostModel, prices: Sequence[float]) -> ChunkOptions:
    """The calls over `grid`; `prices` are in units of the cheapest timestep of any bucket."""
    nanoseconds = {bucket: max(1, round(cost.of(bucket) * 1e6)) for bucket in grid.buckets}
    cheapest = min(one / (bucket.batch * bucket.length) for bucket, one in nanoseconds.items())
    charged = (0, *(round(price * cheapest) for price in prices))
    tables = [_priced(nanoseconds, price) for price in charged]
    sums = _sums(grid, tables[0])
    calls = {batch: _calls_of(batch, _paying(grid, batch, tables[0], sums), tables) for batch in grid.batches}
    begun = (_first_batches(grid, _sums(grid, table)) for table in (tables[0], tables[-1]))
    firsts = [cheap | frugal for cheap, frugal in zip(*begun, strict=True)]
    again = _again(grid, sums)
    ladders = {batch: _ladders(batch, own, grid, again) for batch, own in calls.items()}
    several = (
        tuple(
            _option(rows, batch, calls[batch], firsts, ladders[batch]) for batch in sorted(firsts[rows], reverse=True)
        )
        for rows in range(2, grid.batches[-1] + 1)
    )
    lone = _lone(grid, tables)
    return ChunkOptions(((), (_lone_option(lone),), *several), lone, charged)


def covers(batches: Sequence[int], weights: Mapping[int, int], most: int) -> list[tuple[int, int]]:
    """For 0 to `most` rows, the least weight of batches that hold them together, and the largest batch of these.

    >>> covers((1, 4), {1: 10, 4: 25}, most=6)
    [(0, 0), (10, 1), (20, 1), (25, 4), (25, 4), (35, 4), (45, 4)]
    """
    table = [(0, 0)]
    for rows in range(1, most + 1):
        weight, negative = min((weights[batch] + table[max(0, rows - batch)][0], -batch) for batch in batches)
        table.append((weight, -negative))
    return table


def _priced(nanoseconds: Mapping[Bucket, int], price: int) -> CostTable:
    return {
        bucket: (one + price * bucket.batch * bucket.length) * COST_UNIT + bucket.batch * bucket.length
        for bucket, one in nanoseconds.items()
    }


def _sums(grid: BucketGrid, weights: CostTable) -> dict[Bucket, int]:
    """The least weight of each bucket or of shorter ones that last exactly as long, one after the other."""
    least = {}
    for batch in grid.batches:
        series: list[int | None] = [0]
        for total in range(1, grid.lengths[-1] + 1):
            parts = [(weights[Bucket(batch, last)], series[total - last]) for last in grid.lengths if last <= total]
            series.append(min((weight + before for weight, before in parts if before is not None), default=None))
        least.update({Bucket(batch, length): series[length] or 0 for length in grid.lengths})
    return least


def _paying(grid: BucketGrid, batch: int, weights: CostTable, sums: CostTable) -> tuple[int, ...]:
    """The chunk lengths which neither shorter ones can replace for less, nor a longer one."""
    paying: list[int] = []
    least = None
    for length in reversed(grid.lengths):
        bucket = Bucket(batch, length)
        if (least is None or weights[bucket] < least) and weights[bucket] <= sums[bucket]:
            paying.append(length)
            least = weights[bucket]
    return tuple(reversed(paying))


def _calls_of(batch: int, lengths: tuple[int, ...], tables: Sequence[CostTable]) -> ChunkCosts:
    buckets = tuple(Bucket(batch, length) for length in lengths)
    weights = tuple(tuple(table[bucket] for bucket in buckets) for table in tables)
    return _with_tails(lengths, (buckets,) * len(tables), weights)


def _lone(grid: BucketGrid, tables: Sequence[CostTable]) -> ChunkCosts:
    buckets = tuple(
        tuple(min((Bucket(batch, length) for batch in grid.batches), key=table.__getitem__) for length in grid.lengths)
        for table in tables
    )
    weights = tuple(tuple(map(table.__getitem__, own)) for table, own in zip(tables, buckets, strict=True))
    return _with_tails(grid.lengths, buckets, weights)


def _with_tails(
    lengths: tuple[int, ...], buckets: tuple[tuple[Bucket, ...], ...], weights: tuple[tuple[int, ...], ...]
) -> ChunkCosts:
    pairs = [_tails(lengths, own) for own in weights]
    return ChunkCosts(
        lengths, buckets, weights, tuple(tails for tails, _ in pairs), tuple(series for _, series in pairs)
    )


def _tails(lengths: tuple[int, ...], weights: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    tails, series = [0], [0]
    for left in range(1, 2 * lengths[-1] + 1):
        least, negative = min(
            (weight + tails[max(0, left - length)], -place)
            for place, (length, weight) in enumerate(zip(lengths, weights, strict=True))
        )
        tails.append(least)
        series.append(-negative)
    return tuple(tails), tuple(series)


def _first_batches(grid: BucketGrid, weights: CostTable) -> list[set[int]]:
    """For each number of rows, the largest batches of their cheapest covers, over all chunk lengths."""
    most = grid.batches[-1]
    firsts: list[set[int]] = [set() for _ in range(most + 1)]
    for length in grid.lengths:
        own = {batch: weights[Bucket(batch, length)] for batch in grid.batches}
        for rows, (_, batch) in enumerate(covers(grid.batches, own, most)):
            if rows:
                firsts[rows].add(batch)
    return firsts


def _again(grid: BucketGrid, weights: CostTable) -> list[list[int]]:
    """again[place][rows]: the least weight of a chunk for so many rows, of the length at that place or longer."""
    table: list[list[int]] = []
    for length in reversed(grid.lengths):
        own = {batch: weights[Bucket(batch, length)] for batch in grid.batches}
        these = [weight for weight, _ in covers(grid.batches, own, grid.batches[-1])]
        table.append([min(pair) for pair in zip(these, table[-1], strict=True)] if table else these)
    return table[::-1]


def _ladders(
    batch: int, calls: ChunkCosts, grid: BucketGrid, again: list[list[int]]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    weights = calls.weights[0]
    ladder = []
    for place, length in enumerate(calls.lengths):
        longer = [
            (weight - weights[place], again[bisect_left(grid.lengths, more - length)])
            for more, weight in zip(calls.lengths[place + 1 :], weights[place + 1 :], strict=True)
        ]
        enough = 0
        while longer and enough < batch and all(once_more[enough + 1] <= added for added, once_more in longer):
            enough += 1
        ladder.append((length, enough))
    return tuple(tuple(ladder[place:]) for place in range(len(ladder)))


def _option(
    rows: int,
    batch: int,
    calls: ChunkCosts,
    firsts: Sequence[set[int]],
    ladders: tuple[tuple[tuple[int, int], ...], ...],
) -> CallOption:
    taken = min(rows, batch)
    kept = taken
    while kept > 2 and firsts[kept - 1] == {batch}:
        kept -= 1
    return CallOption(calls, taken, kept, _begins(calls.lengths), ladders)


def _lone_option(lone: ChunkCosts) -> CallOption:
    """For a row with more timesteps left than `tails` has: the longest chunk."""
    ladders = tuple(tuple((length, 0) for length in lone.lengths[place:]) for place in range(len(lone.lengths)))
    return CallOption(lone, 1, 1, _begins(lone.lengths), ladders)


def _begins(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(0, bisect_right(lengths, left) - 1) for left in range(lengths[-1] + 1))
