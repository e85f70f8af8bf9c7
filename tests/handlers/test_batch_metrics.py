from hypothesis import given
from hypothesis import strategies as st
from plans import useful_timesteps

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import Planner, make_planner
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid, DynamicShape
from torchserve_neuron_lstm.handlers.batch import BatchStats
from torchserve_neuron_lstm.handlers.metrics import BatchMetrics

GRID = BucketGrid(batches=(1, 4, 8), lengths=(8, 16, 40))
SHAPE = DynamicShape(batch=8, length=40)
SEQUENCE = make_planner("sequence", GRID, CostModel.proportional(GRID))
CHUNK = make_planner("chunk", SHAPE, CostModel.proportional(SHAPE))

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=20)
PLANNERS = st.sampled_from([SEQUENCE, CHUNK])


def counted(lengths: list[int], plan: Plan) -> BatchMetrics:
    return BatchMetrics(requests=len(lengths), stats=BatchStats(tuple(lengths), sum(lengths), (plan,)))


@given(LENGTHS, PLANNERS)
def test_padded_timesteps_are_what_the_plan_computes_beside_the_real_ones(lengths: list[int], planner: Planner) -> None:
    plan = planner.plan(lengths)

    assert counted(lengths, plan).padded_timesteps == plan.computed_timesteps - useful_timesteps(plan, lengths) >= 0


@given(LENGTHS, PLANNERS)
def test_every_run_is_counted_in_a_bucket_of_the_grid_that_holds_it(lengths: list[int], planner: Planner) -> None:
    """The number of names is limited by the grid's buckets, for any shapes of an engine."""
    plan = planner.plan(lengths)
    executions = counted(lengths, plan).executions(GRID)

    assert sum(executions.values()) == len(plan.calls)
    assert set(executions) <= {f"{bucket.batch}x{bucket.length}" for bucket in GRID.buckets}
    if planner is SEQUENCE:
        assert set(executions) == {f"{run.bucket.batch}x{run.bucket.length}" for run in plan.calls}


@given(LENGTHS)
def test_the_text_of_the_lengths_says_them_all(lengths: list[int]) -> None:
    pairs = [pair.split(":") for pair in counted(lengths, Plan(())).lengths_text.split()]

    assert sorted(lengths) == [int(length) for length, times in pairs for _ in range(int(times))]
    assert len(pairs) == len(set(lengths))
