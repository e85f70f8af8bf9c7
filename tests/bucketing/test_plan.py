import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall, WorkEstimate
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, DynamicShape


def test_a_plan_costs_what_its_runs_cost() -> None:
    cost = CostModel({Bucket(4, 8): 1.5, Bucket(1, 16): 0.25})

    assert Plan((ProgramCall(Bucket(4, 8), (0, 2)), ProgramCall(Bucket(1, 16), (1,)))).milliseconds(cost) == 1.75


def test_dummy_rows_and_padding_are_computed_timesteps() -> None:
    assert Plan((ProgramCall(Bucket(4, 8), (0, 2)), ProgramCall(Bucket(1, 16), (1,)))).computed_timesteps == 48


def test_heads_are_counted_apart() -> None:
    with_heads = Plan((ProgramCall(Bucket(1, 4), (0,)),), heads=(ProgramCall(Bucket(1, 1), (0,)),))
    without = Plan(with_heads.calls)
    cost = CostModel({Bucket(1, 4): 1.0, Bucket(1, 1): 5.0})

    assert with_heads.computed_timesteps == without.computed_timesteps
    assert with_heads.milliseconds(cost) == without.milliseconds(cost)


milliseconds = st.floats(0.01, 10)
costs = st.builds(
    lambda call, step, row: CostModel(
        {Bucket(b, t): call + t * (step + row * b) for b in (1, 2, 8) for t in (1, 4, 16)}
    ),
    milliseconds,
    milliseconds,
    milliseconds,
)
lengths = st.lists(st.integers(1, 16), min_size=1, max_size=40)


@given(costs, lengths)
def test_the_quick_bound_is_never_below_the_estimate(cost: CostModel, lengths: list[int]) -> None:
    """So a request that it accepts needs no closer look."""
    estimate = WorkEstimate(cost, rows=8, steps=16)

    assert estimate.milliseconds(lengths) <= estimate.at_most(len(lengths), sum(lengths)) * (1 + 1e-9)


@given(costs, lengths)
def test_a_plan_takes_no_longer_than_the_estimate(cost: CostModel, lengths: list[int]) -> None:
    plan = make_planner("sequence", DynamicShape(8, 16), cost).plan(lengths)

    assert plan.milliseconds(cost) <= WorkEstimate(cost, rows=8, steps=16).milliseconds(lengths) * (1 + 1e-6)


@pytest.mark.parametrize(("length", "calls"), [(16, 1), (17, 2), (160, 10)])
def test_a_sequence_longer_than_a_call_counts_as_several(length: int, calls: int) -> None:
    cost = CostModel({Bucket(1, 1): 1.25, Bucket(1, 5): 2.25})

    assert WorkEstimate(cost, rows=1, steps=16).milliseconds([length]) == pytest.approx(calls + length / 4)
