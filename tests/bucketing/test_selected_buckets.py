"""Plans with a bucket selector: the user chooses each length, and cost decides the batch sizes only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.batch_planner import BucketPlanner
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.errors import SequenceTooLong
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid

from .strategies import problems

Problem = tuple[BucketGrid, CostModel, list[int], tuple[int, ...]]


@st.composite
def chosen_problems(draw: st.DrawFn) -> Problem:
    """A grid, its costs, lengths that fit it, and any table of bucket lengths that hold them.

    The table need not be monotonic.
    """
    grid, cost, lengths = draw(problems())
    table = tuple(
        draw(st.sampled_from([own for own in grid.lengths if own >= length]))
        for length in range(1, grid.lengths[-1] + 1)
    )
    return grid, cost, lengths, table


@given(chosen_problems())
def test_every_request_runs_once_in_the_length_chosen_for_it(problem: Problem) -> None:
    grid, cost, lengths, table = problem

    plan = make_planner("sequence", grid, cost, table=table).plan(lengths)

    assert sorted(row for run in plan.calls for row in run.rows) == list(range(len(lengths)))
    for run in plan.calls:
        assert run.bucket in grid.buckets
        assert len(run.rows) <= run.bucket.batch
        assert {table[lengths[row] - 1] for row in run.rows} == {run.bucket.length}
        assert list(run.rows) == sorted(run.rows, key=lambda row: (-lengths[row], row))
    assert [run.bucket.length for run in plan.calls] == sorted((run.bucket.length for run in plan.calls), reverse=True)


@given(chosen_problems())
def test_the_batch_sizes_are_the_cheapest(problem: Problem) -> None:
    grid, cost, lengths, table = problem

    ours = make_planner("sequence", grid, cost, table=table).plan(lengths)
    own = tuple(grid.bucket_length_for(length) for length in range(1, grid.lengths[-1] + 1))
    exact = BucketPlanner(grid, cost, own).plan([table[length - 1] for length in lengths])

    assert ours.milliseconds(cost) == pytest.approx(exact.milliseconds(cost))


def test_a_sequence_beyond_the_grid_is_refused_as_ever() -> None:
    grid = BucketGrid((1,), (2, 4))
    planner = make_planner("sequence", grid, CostModel.proportional(grid), table=(2, 2, 4, 4))

    assert planner.plan([]).calls == ()
    with pytest.raises(SequenceTooLong):
        planner.plan([1, 5])
    with pytest.raises(ValueError, match="empty sequence"):
        planner.plan([0])
