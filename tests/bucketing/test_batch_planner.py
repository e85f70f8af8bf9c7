"""The properties of planning.

Every request is in exactly one call, and fits it. Only lengths that fit no bucket are refused. No partition of the
batch into buckets is cheaper. The order of the requests does not change the cost.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.batch_planner import BucketPlanner
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.errors import LengthNotAccepted, SequenceTooLong
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid

from .plan_values import Value, partitions, value_of_buckets
from .strategies import exact_problems, grids, problems

Problem = tuple[BucketGrid, CostModel, list[int]]


def plan(lengths: list[int], grid: BucketGrid, cost: CostModel) -> Plan:
    return BucketPlanner(grid, cost).plan(lengths)


def plan_exact(lengths: list[int], grid: BucketGrid, cost: CostModel) -> Plan:
    return BucketPlanner(grid, cost, padded=False).plan(lengths)


def brute_force(grid: BucketGrid, cost: CostModel, lengths: list[int], *, exact: bool = False) -> Value:
    """The best value over every partition, each group in its best bucket."""

    def group_value(group: list[int]) -> Value | None:
        own = [lengths[row] for row in group]
        holding = [
            bucket
            for bucket in grid.buckets
            if bucket.batch >= len(group) and (set(own) == {bucket.length} if exact else max(own) <= bucket.length)
        ]
        return min((value_of_buckets([bucket], cost) for bucket in holding), default=None)

    values = []
    for groups in partitions(list(range(len(lengths)))):
        parts = [group_value(group) for group in groups]
        if None not in parts:
            values.append((sum(p[0] for p in parts if p), sum(p[1] for p in parts if p)))
    return min(values)


def planned_value(result: Plan, cost: CostModel) -> Value:
    return value_of_buckets([run.bucket for run in result.calls], cost)


@given(problems(max_size=40))
def test_every_request_is_in_exactly_one_run(problem: Problem) -> None:
    """Batches far larger than the largest bucket are split; every request is answered once."""
    grid, cost, lengths = problem

    rows = [row for run in plan(lengths, grid, cost).calls for row in run.rows]

    assert sorted(rows) == list(range(len(lengths)))


@given(problems(max_size=40))
def test_every_request_fits_its_run(problem: Problem) -> None:
    """Each run's bucket is one of the grid, has a row for each request and time for the longest."""
    grid, cost, lengths = problem

    for run in plan(lengths, grid, cost).calls:
        assert run.bucket in grid.buckets
        assert 1 <= len(run.rows) <= run.bucket.batch
        assert max(lengths[row] for row in run.rows) <= run.bucket.length


@given(problems(max_size=6))
def test_no_partition_of_the_batch_is_cheaper(problem: Problem) -> None:
    """The plan is as good as the best of every partition, by cost and then by computed timesteps."""
    grid, cost, lengths = problem

    assert planned_value(plan(lengths, grid, cost), cost) == brute_force(grid, cost, lengths)


@given(problems(max_size=9))
def test_a_plan_never_costs_more_than_one_bucket_for_all(problem: Problem) -> None:
    """One bucket that holds the whole batch is an upper bound."""
    grid, cost, lengths = problem

    planned, _ = planned_value(plan(lengths, grid, cost), cost)

    for bucket in grid.buckets:
        if bucket.batch >= len(lengths) and bucket.length >= max(lengths):
            assert planned <= value_of_buckets([bucket], cost)[0]


@given(problems(max_size=20), st.randoms(use_true_random=False))
def test_the_order_of_the_requests_does_not_change_the_cost(problem: Problem, random: Random) -> None:
    grid, cost, lengths = problem
    shuffled = random.sample(lengths, len(lengths))

    buckets = [run.bucket for run in plan(lengths, grid, cost).calls]

    assert [run.bucket for run in plan(shuffled, grid, cost).calls] == buckets


@given(problems())
def test_the_same_batch_is_planned_the_same_by_every_planner(problem: Problem) -> None:
    """A planner keeps no state of earlier batches, and planners of the same grid and cost are equal."""
    grid, cost, lengths = problem
    planner = BucketPlanner(grid, cost)

    first = planner.plan(lengths)
    planner.plan(lengths[::-1])

    assert planner.plan(lengths) == first == BucketPlanner(grid, cost).plan(lengths)
    assert planner == BucketPlanner(grid, cost)


@given(grids(), st.lists(st.integers(1, 14), min_size=1, max_size=8))
def test_exactly_the_lengths_that_fit_nothing_are_refused(grid: BucketGrid, lengths: list[int]) -> None:
    """The refusal carries the longest length and every bucket length."""
    planner = BucketPlanner(grid, CostModel.proportional(grid))

    if max(lengths) > grid.lengths[-1]:
        with pytest.raises(SequenceTooLong) as refusal:
            planner.plan(lengths)
        assert (refusal.value.length, refusal.value.available) == (max(lengths), grid.lengths)
    else:
        assert planner.plan(lengths).useful_timesteps(lengths) == sum(lengths)


def test_a_larger_bucket_that_was_measured_cheaper_is_taken() -> None:
    """The choice is by cost: one row may run in the bucket of four rows and more time."""
    grid = BucketGrid((1, 4), (16, 32))
    cost = CostModel({Bucket(1, 16): 2.0, Bucket(4, 16): 1.5, Bucket(1, 32): 3.0, Bucket(4, 32): 1.0})

    assert plan([3], grid, cost).calls == (ProgramCall(Bucket(4, 32), (0,)),)


def test_equal_costs_are_decided_by_fewer_computed_timesteps() -> None:
    """Two calls of one row cost as much as one call of four rows, and compute half as many timesteps."""
    grid = BucketGrid((1, 4), (8,))
    cost = CostModel({Bucket(1, 8): 1.0, Bucket(4, 8): 2.0})

    assert plan([8, 8], grid, cost).calls == (ProgramCall(Bucket(1, 8), (0,)), ProgramCall(Bucket(1, 8), (1,)))


def test_plans_equal_in_all_are_decided_for_the_fuller_first_run() -> None:
    """Two calls of one row and one call of two rows are equal in cost and work: the one call is chosen."""
    grid = BucketGrid((1, 2), (8,))
    cost = CostModel({Bucket(1, 8): 1.0, Bucket(2, 8): 2.0})

    assert plan([8, 8, 8], grid, cost).calls == (ProgramCall(Bucket(2, 8), (0, 1)), ProgramCall(Bucket(1, 8), (2,)))


def test_requests_of_one_length_keep_their_order() -> None:
    """Requests run longest first; requests of equal length run in the order of arrival."""
    grid = BucketGrid((2,), (8,))

    assert plan([5, 8, 5, 8, 5], grid, CostModel.proportional(grid)).calls == (
        ProgramCall(Bucket(2, 8), (1, 3)),
        ProgramCall(Bucket(2, 8), (0, 2)),
        ProgramCall(Bucket(2, 8), (4,)),
    )


def test_an_empty_batch_needs_no_run() -> None:
    """A batch in which every request was refused is still planned."""
    grid = BucketGrid((1,), (8,))

    assert plan([], grid, CostModel.proportional(grid)) == Plan(())
    assert plan_exact([], grid, CostModel.proportional(grid)) == Plan(())


@pytest.mark.parametrize("bad", [0, -1])
def test_an_empty_sequence_is_named_by_its_place(bad: int) -> None:
    """Engines refuse a length of 0."""
    grid = BucketGrid((1,), (8,))

    for method in (plan, plan_exact):
        with pytest.raises(ValueError, match=f"request 1 has {bad} timesteps"):
            method([3, bad, 8], grid, CostModel.proportional(grid))


@given(exact_problems(max_size=30))
def test_unpadded_rows_run_with_their_own_length_only(problem: Problem) -> None:
    """Every request is in one run whose bucket has exactly its length."""
    grid, cost, lengths = problem

    runs = plan_exact(lengths, grid, cost).calls

    assert sorted(row for run in runs for row in run.rows) == list(range(len(lengths)))
    assert all(lengths[row] == run.bucket.length for run in runs for row in run.rows)
    assert all(len(run.rows) <= run.bucket.batch for run in runs)


@given(exact_problems(max_size=6))
def test_no_unpadded_partition_is_cheaper(problem: Problem) -> None:
    """The plan is the optimum over the partitions without mixed lengths."""
    grid, cost, lengths = problem

    assert planned_value(plan_exact(lengths, grid, cost), cost) == brute_force(grid, cost, lengths, exact=True)


@given(grids(), st.lists(st.integers(1, 14), min_size=1, max_size=8))
def test_unpadded_lengths_that_are_no_buckets_own_are_refused(grid: BucketGrid, lengths: list[int]) -> None:
    """The refusal has a length that is not accepted, and all accepted lengths."""
    cost = CostModel.proportional(grid)
    foreign = set(lengths) - set(grid.lengths)

    if foreign:
        with pytest.raises(LengthNotAccepted) as refusal:
            plan_exact(lengths, grid, cost)
        assert refusal.value.length in foreign
        assert refusal.value.available == grid.lengths
    else:
        assert plan_exact(lengths, grid, cost).useful_timesteps(lengths) == sum(lengths)
