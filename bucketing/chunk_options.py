"""Tables for chunked plans over a grid, computed once for the grid and its costs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .cost import COST_UNIT, CostModel, bucket_costs
from .shapes import Bucket, BucketGrid

CostTable = Mapping[Bucket, int]
"""Integer cost of each bucket, in nanoseconds."""


class ChunkCosts(NamedTuple):
    """Chunks for some rows, by chunk length, ascending.

    Members that depend on a penalty have one entry for each.
    """

    lengths: tuple[int, ...]
    buckets: tuple[tuple[Bucket, ...], ...]
    costs: tuple[tuple[int, ...], ...]
    suffix_costs: tuple[tuple[int, ...], ...]
    """suffix_costs[penalty][d]: the least cost of chunks of d timesteps or more in total.

    d is at most twice the longest chunk length."""
    suffix_choice: tuple[tuple[int, ...], ...]
    """suffix_choice[penalty][d]: the index of the first of these chunks."""


class CallOption(NamedTuple):
    """One way to start a row group: calls of one batch size, for all rows or the longest of them."""

    chunks: ChunkCosts
    rows_called: int
    """Number of rows that are called; any others are a separate row group."""
    min_active: int
    """Number of these rows that must be active for no other batch size to be better."""
    first_chunk: tuple[int, ...]
    """first_chunk[d]: index of the longest chunk of at most d timesteps, or of the shortest."""
    candidate_chunks: tuple[tuple[tuple[int, int], ...], ...]
    """candidate_chunks[index]: the chunks from that index on, as (length, enough).

    With at most `enough` rows active at its end, calling again is cheaper than any longer chunk."""


class ChunkOptions(NamedTuple):
    """All calls that a planner considers."""

    options: tuple[tuple[CallOption, ...], ...]
    """Options by number of rows, from 0, which has none, to the largest batch size."""
    single_row: ChunkCosts
    """Chunks for a single row: each length in its cheapest bucket."""
    timestep_penalties: tuple[int, ...]
    """Nanoseconds added to the cost of a computed timestep; the first is 0."""
    rates: tuple[int, ...]
    """By number of rows, the least cost of a timestep: of batches that hold them, in any chunk length."""


def chunk_options(grid: BucketGrid, cost: CostModel, penalties: Sequence[float]) -> ChunkOptions:
    """Compute the tables for `grid`; `penalties` are in units of the cheapest timestep of any bucket."""
    costs = bucket_costs(cost, grid.buckets)
    cheapest = min(one // COST_UNIT / (bucket.batch * bucket.length) for bucket, one in costs.items())
    nanoseconds = (0, *(round(penalty * cheapest) for penalty in penalties))
    tables = [_penalized(costs, penalty) for penalty in nanoseconds]
    sums = _sums(grid, tables[0])
    worthwhile = {batch: _worthwhile(grid, batch, tables[0], sums) for batch in grid.batches}
    chunks = {batch: _chunk_costs_of(batch, lengths, tables) for batch, lengths in worthwhile.items()}
    first_batches = (_first_batches(grid, _sums(grid, table)) for table in (tables[0], tables[-1]))
    firsts = [cheap | frugal for cheap, frugal in zip(*first_batches)]
    again = _again(grid, sums)
    candidates = {batch: _candidates(batch, own, grid, again) for batch, own in chunks.items()}
    several = (
        tuple(
            _option(rows, batch, chunks[batch], firsts, candidates[batch])
            for batch in sorted(firsts[rows], reverse=True)
        )
        for rows in range(2, grid.batches[-1] + 1)
    )
    single_row = _single_row(grid, tables)
    options = ((), (_single_row_option(single_row),), *several)
    return ChunkOptions(options, single_row, nanoseconds, _rates(grid, tables[0]))


def covers(batches: Sequence[int], costs: Mapping[int, int], most: int) -> list[tuple[int, int]]:
    """Compute, for 0 to `most` rows, the least cost of batches that hold them, and the largest batch.

    >>> covers((1, 4), {1: 10, 4: 25}, most=6)
    [(0, 0), (10, 1), (20, 1), (25, 4), (25, 4), (35, 4), (45, 4)]
    """
    table = [(0, 0)]
    for rows in range(1, most + 1):
        cost, negative = min((costs[batch] + table[max(0, rows - batch)][0], -batch) for batch in batches)
        table.append((cost, -negative))
    return table


def _penalized(costs: CostTable, penalty: int) -> CostTable:
    return {bucket: one + penalty * bucket.batch * bucket.length * COST_UNIT for bucket, one in costs.items()}


def _sums(grid: BucketGrid, costs: CostTable) -> dict[Bucket, int]:
    """For each bucket, the least cost of it or of consecutive shorter ones of exactly its length in total."""
    least = {}
    for batch in grid.batches:
        sums: list[int | None] = [0]
        for total in range(1, grid.lengths[-1] + 1):
            parts = [(costs[Bucket(batch, last)], sums[total - last]) for last in grid.lengths if last <= total]
            sums.append(min((cost + before for cost, before in parts if before is not None), default=None))
        least.update({Bucket(batch, length): sums[length] or 0 for length in grid.lengths})
    return least


def _worthwhile(grid: BucketGrid, batch: int, costs: CostTable, sums: CostTable) -> tuple[int, ...]:
    """Chunk lengths which neither shorter ones nor a longer one can replace at a lower cost."""
    worthwhile: list[int] = []
    least = None
    for length in reversed(grid.lengths):
        bucket = Bucket(batch, length)
        if (least is None or costs[bucket] < least) and costs[bucket] <= sums[bucket]:
            worthwhile.append(length)
            least = costs[bucket]
    return tuple(reversed(worthwhile))


def _chunk_costs_of(batch: int, lengths: tuple[int, ...], tables: Sequence[CostTable]) -> ChunkCosts:
    buckets = tuple(Bucket(batch, length) for length in lengths)
    costs = tuple(tuple(table[bucket] for bucket in buckets) for table in tables)
    return _with_suffixes(lengths, (buckets,) * len(tables), costs)


def _single_row(grid: BucketGrid, tables: Sequence[CostTable]) -> ChunkCosts:
    buckets = tuple(
        tuple(min((Bucket(batch, length) for batch in grid.batches), key=table.__getitem__) for length in grid.lengths)
        for table in tables
    )
    costs = tuple(tuple(map(table.__getitem__, own)) for table, own in zip(tables, buckets))
    return _with_suffixes(grid.lengths, buckets, costs)


def _with_suffixes(
    lengths: tuple[int, ...], buckets: tuple[tuple[Bucket, ...], ...], costs: tuple[tuple[int, ...], ...]
) -> ChunkCosts:
    suffix_costs, suffix_choice = zip(*(_suffixes(lengths, own) for own in costs))
    return ChunkCosts(lengths, buckets, costs, suffix_costs, suffix_choice)


def _suffixes(lengths: tuple[int, ...], costs: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    suffix_costs, suffix_choice = [0], [0]
    for left in range(1, 2 * lengths[-1] + 1):
        least, negative = min(
            (cost + suffix_costs[max(0, left - length)], -index)
            for index, (length, cost) in enumerate(zip(lengths, costs))
        )
        suffix_costs.append(least)
        suffix_choice.append(-negative)
    return tuple(suffix_costs), tuple(suffix_choice)


def _rates(grid: BucketGrid, costs: CostTable) -> tuple[int, ...]:
    least = {batch: min(costs[Bucket(batch, length)] // length for length in grid.lengths) for batch in grid.batches}
    return tuple(rate for rate, _ in covers(grid.batches, least, grid.batches[-1]))


def _first_batches(grid: BucketGrid, costs: CostTable) -> list[set[int]]:
    """For each number of rows, the largest batches of their cheapest covers, over all chunk lengths."""
    most = grid.batches[-1]
    firsts: list[set[int]] = [set() for _ in range(most + 1)]
    for length in grid.lengths:
        own = {batch: costs[Bucket(batch, length)] for batch in grid.batches}
        for rows, (_, batch) in enumerate(covers(grid.batches, own, most)):
            if rows:
                firsts[rows].add(batch)
    return firsts


def _again(grid: BucketGrid, costs: CostTable) -> list[list[int]]:
    """again[index][rows]: the least cost for so many rows of a chunk of that length or longer."""
    table: list[list[int]] = []
    for length in reversed(grid.lengths):
        own = {batch: costs[Bucket(batch, length)] for batch in grid.batches}
        these = [cost for cost, _ in covers(grid.batches, own, grid.batches[-1])]
        table.append([min(pair) for pair in zip(these, table[-1])] if table else these)
    return table[::-1]


def _candidates(
    batch: int, chunks: ChunkCosts, grid: BucketGrid, again: list[list[int]]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    costs = chunks.costs[0]
    candidates = []
    for index, length in enumerate(chunks.lengths):
        longer = [
            (cost - costs[index], again[bisect_left(grid.lengths, more - length)])
            for more, cost in zip(chunks.lengths[index + 1 :], costs[index + 1 :])
        ]
        enough = 0
        while longer and enough < batch and all(once_more[enough + 1] <= added for added, once_more in longer):
            enough += 1
        candidates.append((length, enough))
    return tuple(tuple(candidates[index:]) for index in range(len(candidates)))


def _option(
    rows: int,
    batch: int,
    chunks: ChunkCosts,
    firsts: Sequence[set[int]],
    candidates: tuple[tuple[tuple[int, int], ...], ...],
) -> CallOption:
    rows_called = min(rows, batch)
    min_active = rows_called
    while min_active > 2 and firsts[min_active - 1] == {batch}:
        min_active -= 1
    return CallOption(chunks, rows_called, min_active, _first_chunk(chunks.lengths), candidates)


def _single_row_option(chunks: ChunkCosts) -> CallOption:
    """Option for a row with more timesteps left than `suffix_costs` has: the longest chunk."""
    candidates = tuple(tuple((length, 0) for length in chunks.lengths[index:]) for index in range(len(chunks.lengths)))
    return CallOption(chunks, 1, 1, _first_chunk(chunks.lengths), candidates)


def _first_chunk(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(0, bisect_right(lengths, left) - 1) for left in range(lengths[-1] + 1))
