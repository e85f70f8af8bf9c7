from __future__ import annotations

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket


def test_useful_and_padded_timesteps_add_up_to_what_is_computed() -> None:
    """Dummy rows and padded timesteps are both waste."""
    result = Plan((ProgramCall(Bucket(4, 8), (0, 2)), ProgramCall(Bucket(1, 16), (1,))))
    lengths = [7, 12, 3]

    assert (result.computed_timesteps, result.useful_timesteps(lengths), result.padded_timesteps(lengths)) == (
        48,
        22,
        26,
    )


def test_a_plan_costs_what_its_runs_cost() -> None:
    """Calls follow each other, so their times add up."""
    cost = CostModel({Bucket(4, 8): 1.5, Bucket(1, 16): 0.25})

    assert Plan((ProgramCall(Bucket(4, 8), (0, 2)), ProgramCall(Bucket(1, 16), (1,)))).milliseconds(cost) == 1.75


def test_a_row_that_ends_inside_a_chunk_is_useful_to_its_end() -> None:
    """A call of eight timesteps that starts at four has two timesteps of a row of six."""
    result = Plan((ProgramCall(Bucket(2, 4), (1, 0)), ProgramCall(Bucket(2, 8), (1, 0), start=4)))

    assert (result.computed_timesteps, result.useful_timesteps([6, 12])) == (24, 18)


def test_heads_are_counted_apart() -> None:
    """They run another program: its cells and its cost are counted separately."""
    with_heads = Plan((ProgramCall(Bucket(1, 4), (0,)),), heads=(ProgramCall(Bucket(1, 1), (0,)),))
    without = Plan(with_heads.calls)
    cost = CostModel({Bucket(1, 4): 1.0, Bucket(1, 1): 5.0})

    assert with_heads.computed_timesteps == without.computed_timesteps
    assert with_heads.milliseconds(cost) == without.milliseconds(cost)
