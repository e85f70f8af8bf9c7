from collections.abc import Iterator
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.dynamic_chunks import DynamicChunkPlanner
from torchserve_neuron_lstm.bucketing.plan import ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, DynamicShape

from .plan_values import Value, planned_calls, value_of_calls
from .strategies import free_problems

Problem = tuple[DynamicShape, CostModel, list[int]]
Calls = list[tuple[int, int]]
"""Rows and timesteps of calls."""


def chunked_plans(lengths: list[int]) -> Iterator[Calls]:
    """Every chunked plan of these rows with cuts at any of the lengths."""
    inner = sorted(set(lengths))[:-1]
    for count in range(len(inner) + 1):
        for cuts in combinations(inner, count):
            times = [0, *cuts, max(lengths)]
            yield [(sum(length > start for length in lengths), end - start) for start, end in pairwise(times)]


def brute_force(lengths: list[int], size: int, cost: CostModel) -> Value:
    """The best rank of row groups of `size` rows, each with its own chunks."""
    ordered = sorted(lengths, reverse=True)
    groups = [ordered[first : first + size] for first in range(0, len(ordered), size)]
    best = [min(value_of_calls(calls, cost) for calls in chunked_plans(own)) for own in groups]
    return sum(value[0] for value in best), sum(value[1] for value in best)


@given(free_problems(max_size=16))
def test_no_chunked_plan_is_cheaper(problem: Problem) -> None:
    shape, cost, lengths = problem
    planner = DynamicChunkPlanner(shape, cost)

    best = min(brute_force(lengths, size, cost) for size in planner.group_sizes)

    assert planned_calls(planner.plan(lengths), cost) == best


@given(
    st.lists(st.integers(1, 60), min_size=4, max_size=7, unique=True),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=7, max_size=7),
)
def test_no_chunked_plan_is_cheaper_whatever_each_number_of_rows_costs(
    lengths: list[int], lines: list[tuple[int, int]]
) -> None:
    shape = DynamicShape(len(lengths), 60)
    measured = dict(enumerate(lines[: len(lengths)], start=1))
    cost = CostModel(
        {Bucket(rows, steps): call + step * steps for rows, (call, step) in measured.items() for steps in (1, 60)}
    )
    planner = DynamicChunkPlanner(shape, cost)

    best = min(brute_force(lengths, size, cost) for size in planner.group_sizes)

    assert planned_calls(planner.plan(lengths), cost)[0] == best[0]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_cutting_elsewhere_is_never_cheaper_where_more_rows_cost_more(lengths: list[int]) -> None:
    shape = DynamicShape(5, 6)
    cost = CostModel.proportional(shape)

    def anywhere(start: int) -> Iterator[Calls]:
        alive = sum(length > start for length in lengths)
        if not alive:
            yield []
        else:
            for end in range(start + 1, max(lengths) + 1):
                yield from ([(alive, end - start), *rest] for rest in anywhere(end))

    best = min(value_of_calls(calls, cost) for calls in anywhere(0))

    assert planned_calls(DynamicChunkPlanner(shape, cost).plan(lengths), cost) == best


def test_a_free_call_lets_every_chunk_be_cut_and_an_expensive_one_none() -> None:
    """If only the cells cost, no timestep is padded; if only the call costs, one call runs all rows."""
    shape, lengths = DynamicShape(4, 100), [10, 100, 70, 40]
    free = DynamicChunkPlanner(shape, CostModel({Bucket(4, 100): 1.0})).plan(lengths)
    expensive = CostModel({Bucket(batch, length): 1.0 for batch in (1, 4) for length in (1, 100)})

    assert free.computed_timesteps == sum(lengths)
    assert free.calls == (
        ProgramCall(Bucket(4, 10), (1, 2, 3, 0), 0),
        ProgramCall(Bucket(3, 30), (1, 2, 3), 10),
        ProgramCall(Bucket(2, 30), (1, 2), 40),
        ProgramCall(Bucket(1, 30), (1,), 70),
    )
    assert DynamicChunkPlanner(shape, expensive).plan(lengths).calls == (ProgramCall(Bucket(4, 100), (1, 2, 3, 0)),)


def test_a_batch_of_more_rows_than_the_engine_takes_is_cut_longest_first() -> None:
    shape = DynamicShape(2, 10)
    result = DynamicChunkPlanner(shape, CostModel.proportional(shape)).plan([1, 10, 2, 9, 1])

    assert [run.rows for run in result.calls if run.start == 0] == [(1, 3), (2, 0), (4,)]
    assert [head.bucket for head in result.heads] == [Bucket(2, 1), Bucket(2, 1), Bucket(1, 1)]


def test_two_groups_are_made_where_many_rows_were_measured_slow() -> None:
    shape = DynamicShape(8, 100)
    line = {1: 1.0, 2: 1.0, 4: 1.0, 8: 3.0}
    cost = CostModel({Bucket(rows, steps): 0.1 + step * steps for rows, step in line.items() for steps in (1, 100)})
    planner = DynamicChunkPlanner(shape, cost)

    assert planner.group_sizes == (8, 4)
    assert [run.bucket.batch for run in planner.plan([50] * 8).calls] == [4, 4]
    assert [run.bucket.batch for run in planner.plan([50] * 4).calls] == [4]


def test_a_head_has_whole_row_groups_only() -> None:
    """A head over parts of two groups would join their buffers."""
    shape = DynamicShape(8, 100)
    line = {1: 1.0, 3: 1.0, 8: 6.0}
    cost = CostModel({Bucket(rows, steps): 0.1 + step * steps for rows, step in line.items() for steps in (1, 100)})

    plan = DynamicChunkPlanner(shape, cost).plan([50] * 12)

    assert {run.bucket.batch for run in plan.calls} == {3}
    assert [head.bucket.batch for head in plan.heads] == [6, 6]
