from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.batch_planner import DynamicPlanner
from torchserve_neuron_lstm.bucketing.cost import CostModel, LinearCost
from torchserve_neuron_lstm.bucketing.shapes import Bucket, DynamicShape

from .plan_values import partitions, planned_calls, value_of_calls
from .strategies import free_problems

Problem = tuple[DynamicShape, CostModel, list[int]]


def divisions(lengths: list[int], sizes: tuple[int, ...]) -> Iterator[list[tuple[int, int]]]:
    """Every way to cut lengths, the longest first, into groups of these sizes; the last has the remainder."""
    if not lengths:
        yield []
    if 1 <= len(lengths) <= sizes[-1]:
        yield [(len(lengths), lengths[0])]
    for size in sizes:
        if size < len(lengths):
            yield from ([(size, lengths[0]), *rest] for rest in divisions(lengths[size:], sizes))


@given(free_problems(max_size=9))
def test_no_division_into_groups_is_cheaper(problem: Problem) -> None:
    shape, cost, lengths = problem
    planner = DynamicPlanner(shape, cost)

    every = divisions(sorted(lengths, reverse=True), planner.sizes)

    assert planned_calls(planner.plan(lengths), cost) == min(value_of_calls(groups, cost) for groups in every)


@given(st.integers(1, 6), st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_no_partition_at_all_is_cheaper_where_more_rows_cost_more(batch: int, lengths: list[int]) -> None:
    shape = DynamicShape(batch, 30)
    cost = CostModel.proportional(shape)

    every = (
        [(len(group), max(lengths[row] for row in group)) for group in groups]
        for groups in partitions(list(range(len(lengths))))
        if max(map(len, groups)) <= batch
    )

    assert planned_calls(DynamicPlanner(shape, cost).plan(lengths), cost) == min(
        value_of_calls(one, cost) for one in every
    )


def test_groups_have_small_sizes_and_measured_ones() -> None:
    cost = CostModel({Bucket(batch, length): 1.0 for batch in (1, 16, 24, 64) for length in (1, 8)})

    assert DynamicPlanner(DynamicShape(32, 8), cost).sizes == (*range(1, 9), 16, 24, 32)


def test_equal_plans_are_decided_for_one_call() -> None:
    shape = DynamicShape(4, 8)
    cost = CostModel({Bucket(1, 1): 1.0, Bucket(4, 1): 4.0})
    assert cost.line(2) == LinearCost(call_ms=0.0, step_ms=2.0)

    assert [tuple(run.rows) for run in DynamicPlanner(shape, cost).plan([8, 8, 8]).calls] == [(0, 1, 2)]
