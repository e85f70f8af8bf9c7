"""Chunked plans over a grid: the best of their class, near the best plan, within the tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.bucketed_chunks import BucketedChunkPlanner
from torchserve_neuron_lstm.bucketing.chunk_options import CallOption, chunk_options, covers
from torchserve_neuron_lstm.bucketing.cost import COST_UNIT, CostModel
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid

from .plan_values import Value, value_of_buckets
from .strategies import chunk_problems, costs, grids

Problem = tuple[BucketGrid, CostModel, list[int]]


def total(values: Sequence[Value]) -> Value:
    """Their sum."""
    return sum(value[0] for value in values), sum(value[1] for value in values)


def planned_value(result: Plan, cost: CostModel) -> Value:
    """Rank a plan."""
    return value_of_buckets([run.bucket for run in result.calls], cost)


def series(left: int, buckets: Sequence[Bucket], cost: CostModel) -> Value:
    """The best value of consecutive chunks of these buckets, until `left` timesteps have passed."""
    best: list[Value] = [(0, 0)]
    for steps in range(1, left + 1):
        best.append(min(total([value_of_buckets([one], cost), best[max(0, steps - one.length)]]) for one in buckets))
    return best[left]


def best_of_class(grid: BucketGrid, cost: CostModel, lengths: list[int]) -> Value:
    """The best value of the plans that `bucketed_chunks.py` considers, by brute force on the rows."""
    known = chunk_options(grid, cost, (2.0, 1.0))

    @cache
    def best(left: tuple[int, ...]) -> Value:
        if not left:
            return (0, 0)
        if len(left) == 1 and left[0] <= 2 * grid.lengths[-1]:
            return series(left[0], grid.buckets, cost)
        return min(value for option in known.options[len(left)] for value in begun(option, left))

    def whole(left: tuple[int, ...]) -> Value:
        """The best value of a whole batch: rows longer than half of the longest may run apart."""
        long = sum(steps > left[0] // 2 for steps in left)
        apart = [
            min(begun(option, left))
            for option in known.options[long]
            if long == option.rows_called and option.chunks.buckets[0][0].batch < len(left)
        ]
        return min([best(left), *apart])

    def begun(option: CallOption, left: tuple[int, ...]) -> Iterator[Value]:
        buckets = option.chunks.buckets[0]
        called, rest = left[: option.rows_called], best(left[option.rows_called :])
        change = called[option.min_active - 1]  # when another batch size may do better
        if change == called[0] and change <= 2 * buckets[-1].length:
            yield total([series(change, buckets, cost), rest])
            return
        place = max((place for place, bucket in enumerate(buckets) if bucket.length <= change), default=0)
        for bucket, (_, enough) in zip(buckets[place:], option.candidate_chunks[place], strict=True):
            after = tuple(steps - bucket.length for steps in called if steps > bucket.length)
            yield total([value_of_buckets([bucket], cost), best(after), rest])
            if len(after) <= enough:
                return

    ordered = sorted(lengths, reverse=True)
    most = grid.batches[-1]
    return total([whole(tuple(ordered[first : first + most])) for first in range(0, len(ordered), most)])


def best_of_all(grid: BucketGrid, cost: CostModel, lengths: list[int]) -> Value:
    """The best value of all chunked plans: any first rows, in any bucket that holds them."""

    @cache
    def best(left: tuple[int, ...]) -> Value:
        if not left:
            return (0, 0)
        return min(
            total([value_of_buckets([bucket], cost), best(active_after(left[:taken], bucket)), best(left[taken:])])
            for bucket in grid.buckets
            for taken in {min(bucket.batch, len(left))}
        )

    def active_after(left: tuple[int, ...], bucket: Bucket) -> tuple[int, ...]:
        return tuple(steps - bucket.length for steps in left if steps > bucket.length)

    return best(tuple(sorted(lengths, reverse=True)))


@given(chunk_problems(max_size=10))
def test_no_plan_of_the_class_is_cheaper(problem: Problem) -> None:
    """Without a tolerance, the plan is the cheapest by cost, then by computed timesteps."""
    grid, cost, lengths = problem

    planned = planned_value(BucketedChunkPlanner(grid, cost, tolerance=0).plan(lengths), cost)

    assert planned[0] == best_of_class(grid, cost, lengths)[0]
    assert planned[1] <= best_of_class(grid, cost, lengths)[1]


@given(chunk_problems(max_size=6, longest=20))
def test_no_plan_is_cheaper_than_the_best_plan(problem: Problem) -> None:
    """The cost of a plan is not less than the best possible cost."""
    grid, cost, lengths = problem

    assert planned_value(BucketedChunkPlanner(grid, cost, tolerance=0).plan(lengths), cost) >= best_of_all(
        grid, cost, lengths
    )


@given(st.lists(st.integers(1, 24), min_size=1, max_size=7))
def test_plans_cost_at_most_a_tenth_more_than_the_best_plan(lengths: list[int]) -> None:
    """On a grid of powers of two with growing costs, a plan is within a tenth of the best plan."""
    grid = BucketGrid((1, 2, 4, 8), (2, 4, 8))
    cost = CostModel({bucket: 0.1 + bucket.length * (0.03 + 0.01 * bucket.batch) for bucket in grid.buckets})

    planned = planned_value(BucketedChunkPlanner(grid, cost, tolerance=0).plan(lengths), cost)

    assert planned[0] <= 1.1 * best_of_all(grid, cost, lengths)[0]


@given(chunk_problems(max_size=10), st.floats(0, 0.5))
def test_fewer_timesteps_cost_no_more_than_the_tolerance(problem: Problem, tolerance: float) -> None:
    """A plan within the tolerance computes at most as many timesteps as the cheapest."""
    grid, cost, lengths = problem
    cheapest = planned_value(BucketedChunkPlanner(grid, cost, tolerance=-1).plan(lengths), cost)

    planned = planned_value(BucketedChunkPlanner(grid, cost, tolerance=tolerance).plan(lengths), cost)

    groups = math.ceil(len(lengths) / grid.batches[-1])
    assert planned[0] <= cheapest[0] * (1 + tolerance) + groups
    assert planned[1] <= cheapest[1]


@given(chunk_problems(max_size=10, longest=12))
def test_a_plan_never_costs_more_than_one_bucket_for_all(problem: Problem) -> None:
    """One bucket that holds the whole batch is an upper bound of the cost, with any tolerance."""
    grid, cost, lengths = problem

    planned, _ = planned_value(BucketedChunkPlanner(grid, cost, tolerance=0.5).plan(lengths), cost)

    for bucket in grid.buckets:
        if bucket.batch >= len(lengths) and bucket.length >= max(lengths):
            assert planned <= value_of_buckets([bucket], cost)[0]


@given(chunk_problems(max_size=10))
def test_every_call_is_one_of_the_grid(problem: Problem) -> None:
    """The engine has a program for every call."""
    grid, cost, lengths = problem

    assert {run.bucket for run in BucketedChunkPlanner(grid, cost).plan(lengths).calls} <= set(grid.buckets)


@given(chunk_problems(max_size=4, longest=12))
def test_rows_cost_at_least_their_rate_for_each_timestep(problem: Problem) -> None:
    """The bound that `greedy_chunks.py` plans by is below the best plan of rows of one length."""
    grid, cost, lengths = problem
    rows = min(len(lengths), grid.batches[-1])

    nanoseconds, timesteps = best_of_all(grid, cost, [lengths[0]] * rows)

    assert chunk_options(grid, cost, ()).rates[rows] * lengths[0] <= nanoseconds * COST_UNIT + timesteps


def test_a_rate_is_that_of_the_cheapest_batches() -> None:
    """Five rows take a batch of four and one of one, each with its cheaper chunk."""
    grid = BucketGrid((1, 4, 8), (2, 8))
    milliseconds = {Bucket(1, 2): 2.0, Bucket(1, 8): 4.0, Bucket(4, 2): 2.0, Bucket(4, 8): 9.0, Bucket(8, 2): 9.0}
    cost = CostModel({**milliseconds, Bucket(8, 8): 30.0})

    rates = chunk_options(grid, cost, ()).rates

    assert [round(rate / COST_UNIT / 1e6, 3) for rate in rates] == [0, 0.5, 1, 1, 1, 1.5, 2, 2, 2]


def test_penalties_are_in_units_of_the_cheapest_timestep() -> None:
    """The cheapest of these takes a millisecond; penalties are in nanoseconds."""
    grid = BucketGrid((2, 4), (3, 5))
    milliseconds = {Bucket(2, 3): 6.0, Bucket(2, 5): 15.0, Bucket(4, 3): 24.0, Bucket(4, 5): 30.0}

    assert chunk_options(grid, CostModel(milliseconds), (2.0, 0.5)).timestep_penalties == (0, 2_000_000, 500_000)


@given(st.data())
def test_a_batch_size_is_kept_while_no_other_may_do_better(data: st.DataObject) -> None:
    """With that many rows active, or more, a call of another size is no option; with one less, it is."""
    grid = data.draw(grids())
    known = chunk_options(grid, data.draw(costs(grid)), (2.0, 1.0))

    def sizes(rows: int) -> set[int]:
        return {option.chunks.buckets[0][0].batch for option in known.options[rows]}

    for options in known.options[2:]:
        for option in options:
            own = {option.chunks.buckets[0][0].batch}
            assert all(sizes(rows) == own for rows in range(option.min_active, option.rows_called))
            assert option.min_active <= 2 or sizes(option.min_active - 1) != own


@given(st.data())
def test_heads_are_the_cheapest_cover(data: st.DataObject) -> None:
    """The costs are those of the head, which may differ from those of a chunk."""
    grid = data.draw(grids())
    heads = BucketGrid(grid.batches, (1,))
    head_cost = data.draw(costs(heads))
    count = data.draw(st.integers(1, grid.batches[-1]))

    planned = BucketedChunkPlanner(grid, CostModel.proportional(grid), head_cost=head_cost).plan([1] * count).heads

    @cache
    def cover(rows: int) -> Value:
        if rows <= 0:
            return (0, 0)
        return min(
            total([value_of_buckets([bucket], head_cost), cover(rows - bucket.batch)]) for bucket in heads.buckets
        )

    assert value_of_buckets([head.bucket for head in planned], head_cost) == cover(count)


@given(st.dictionaries(st.integers(1, 9), st.integers(1, 50), min_size=1, max_size=4), st.integers(0, 20))
def test_covers_are_the_least_of_all_that_hold_the_rows(weights: dict[int, int], rows: int) -> None:
    """The reported batch size belongs to one of them."""

    def every(left: int) -> Iterator[int]:
        if left <= 0:
            yield 0
        else:
            yield from (weight + more for batch, weight in weights.items() for more in {min(every(left - batch))})

    weight, batch = covers(sorted(weights), weights, rows)[rows]

    assert weight == min(every(rows))
    if rows:
        assert weights[batch] + min(every(rows - batch)) == weight


def test_the_longest_rows_go_on_while_the_short_ones_end() -> None:
    """The four longest rows run together after the others have ended, in chunks of their own."""
    grid = BucketGrid((2, 4), (4, 8))
    cost = CostModel({bucket: 0.01 + bucket.length * bucket.batch for bucket in grid.buckets})

    result = BucketedChunkPlanner(grid, cost).plan([12, 4, 12, 4])

    assert result.calls == (ProgramCall(Bucket(4, 4), (0, 2, 1, 3), 0), ProgramCall(Bucket(2, 8), (0, 2), 4))
    assert result.heads == (ProgramCall(Bucket(4, 1), (0, 2, 1, 3)),)


def test_a_row_that_has_ended_is_in_no_later_call() -> None:
    """With two rows in the smallest bucket, the shorter one is left out after its end."""
    grid = BucketGrid((2,), (4,))

    assert [run.rows for run in BucketedChunkPlanner(grid, CostModel.proportional(grid)).plan([3, 9]).calls] == [
        (1, 0), (1,), (1,),
    ]  # fmt: skip


def test_a_chunk_that_shorter_ones_replace_for_less_is_not_called() -> None:
    """A long chunk was measured as slower than two chunks of half its length."""
    grid = BucketGrid((1,), (4, 8))
    cost = CostModel({Bucket(1, 4): 1.0, Bucket(1, 8): 2.5})

    assert [run.bucket.length for run in BucketedChunkPlanner(grid, cost).plan([8]).calls] == [4, 4]


def test_half_the_timesteps_are_worth_a_fiftieth_of_the_time() -> None:
    """Two rows alone compute half the timesteps of calls of four rows: for 2 % more time, but not for 6 %."""
    grid = BucketGrid((1, 4), (4,))

    def planned(milliseconds: float) -> list[Bucket]:
        cost = CostModel({Bucket(1, 4): milliseconds, Bucket(4, 4): 1.0})
        return [run.bucket for run in BucketedChunkPlanner(grid, cost).plan([8, 8]).calls]

    assert planned(0.51) == [Bucket(1, 4)] * 4
    assert planned(0.53) == [Bucket(4, 4)] * 2
