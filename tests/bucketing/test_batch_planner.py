"""No partition of the batch is cheaper. `test_planner.py` has the properties of every planner."""

from hypothesis import given

from torchserve_neuron_lstm.bucketing.batch_planner import BucketPlanner
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid

from .plan_values import Value, partitions, planned_buckets, value_of_buckets
from .strategies import exact_problems, problems

Problem = tuple[BucketGrid, CostModel, list[int]]


def plan(lengths: list[int], grid: BucketGrid, cost: CostModel) -> Plan:
    return BucketPlanner(grid, cost).plan(lengths)


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


@given(problems(max_size=6))
def test_no_partition_of_the_batch_is_cheaper(problem: Problem) -> None:
    grid, cost, lengths = problem

    result = plan(lengths, grid, cost)

    assert {run.bucket for run in result.calls} <= set(grid.buckets)
    assert planned_buckets(result, cost) == brute_force(grid, cost, lengths)


def test_a_larger_bucket_that_was_measured_cheaper_is_taken() -> None:
    grid = BucketGrid((1, 4), (16, 32))
    cost = CostModel({Bucket(1, 16): 2.0, Bucket(4, 16): 1.5, Bucket(1, 32): 3.0, Bucket(4, 32): 1.0})

    assert plan([3], grid, cost).calls == (ProgramCall(Bucket(4, 32), (0,)),)


def test_equal_costs_are_decided_by_fewer_computed_timesteps() -> None:
    grid = BucketGrid((1, 4), (8,))
    cost = CostModel({Bucket(1, 8): 1.0, Bucket(4, 8): 2.0})

    assert plan([8, 8], grid, cost).calls == (ProgramCall(Bucket(1, 8), (0,)), ProgramCall(Bucket(1, 8), (1,)))


def test_plans_equal_in_all_are_decided_for_the_fuller_first_run() -> None:
    grid = BucketGrid((1, 2), (8,))
    cost = CostModel({Bucket(1, 8): 1.0, Bucket(2, 8): 2.0})

    assert plan([8, 8, 8], grid, cost).calls == (ProgramCall(Bucket(2, 8), (0, 1)), ProgramCall(Bucket(1, 8), (2,)))


@given(exact_problems(max_size=6))
def test_no_partition_of_selected_lengths_is_cheaper(problem: Problem) -> None:
    grid, cost, lengths = problem

    smallest = tuple(grid.bucket_length_for(length) for length in range(1, grid.lengths[-1] + 1))
    result = BucketPlanner(grid, cost, smallest).plan(lengths)

    assert all(lengths[row] == run.bucket.length for run in result.calls for row in run.rows)
    assert planned_buckets(result, cost) == brute_force(grid, cost, lengths, exact=True)
