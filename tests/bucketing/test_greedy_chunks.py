"""Chunked plans of batches with too many states for the exact planner: their work and their cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.bucketed_chunks import BucketedChunkPlanner
from torchserve_neuron_lstm.bucketing.chunk_options import chunk_options
from torchserve_neuron_lstm.bucketing.chunk_states import enumerate_states
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid

from .strategies import chunk_problems

Problem = tuple[BucketGrid, CostModel, list[int]]
DEFAULT_STATES = BucketedChunkPlanner.most_states
UNLIMITED = 10**9


def noisy_costs(grid: BucketGrid, noise: float, random: Random) -> CostModel:
    """Costs of recurrent layers with noise: a call, its timesteps, and those of each row."""
    call, step = random.choice((0.01, 0.05, 0.15, 1.0)), random.choice((0.0, 0.02, 0.1))
    of_row = random.choice((0.001, 0.009, 0.05))
    return CostModel(
        {
            bucket: (call + bucket.length * (step + of_row * bucket.batch)) * random.uniform(1 - noise, 1 + noise)
            for bucket in grid.buckets
        }
    )


def random_lengths(random: Random) -> list[int]:
    """8 to 64 lengths up to 10,000: uniform, log-normal, or of two kinds."""
    count, longest = random.choice((8, 16, 32, 48, 64)), random.choice((300, 1000, 3000, 10_000))
    kind = random.choice(("uniform", "log-normal", "two kinds"))
    if kind == "uniform":
        return [random.randint(1, longest) for _ in range(count)]
    if kind == "log-normal":
        return [min(longest, 1 + int(random.lognormvariate(0, 0.8) * longest / 6)) for _ in range(count)]
    ranges = ((1, longest // 10), (longest // 2, longest))
    return [random.randint(*random.choice(ranges)) for _ in range(count)]


def random_problem(random: Random) -> Problem:
    """A grid, noisy costs, and long sequences."""
    sizes = random.sample((2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), random.randint(1, 5))
    chunks = random.choice(((7, 61, 199), random.sample(range(1, 500), random.randint(2, 7))))
    grid = BucketGrid(tuple(sorted({1, *sizes})), tuple(sorted(chunks)))
    return grid, noisy_costs(grid, random.choice((0.0, 0.05, 0.1, 0.3, 0.5)), random), random_lengths(random)


def count_states(problem: Problem, most: int) -> int:
    """The states of all row groups; more than `most` if there are so many."""
    grid, cost, lengths = problem
    known = chunk_options(grid, cost, (2.0, 1.0))
    ordered = sorted(lengths, reverse=True)
    count, largest = 0, grid.batches[-1]
    for first in range(0, len(ordered), largest):
        states = enumerate_states(ordered[first : first + largest], known, most - count)
        if states is None:
            return most + 1
        count += len(states.keys)
    return count


def too_large_problems(seed: int, most: int) -> Iterator[Problem]:
    """Random batches beyond the default limit, which the exact planner can plan with `most` states."""
    random = Random(seed)
    while True:
        problem = random_problem(random)
        if DEFAULT_STATES < count_states(problem, most) <= most:
            yield problem


def assert_within_a_tenth(problem: Problem, most: int) -> None:
    """The default planner's plan costs at most a tenth more than the cheapest of the exact planner."""
    grid, cost, lengths = problem
    cheapest = BucketedChunkPlanner(grid, cost, tolerance=-1, most_states=most).plan(lengths).milliseconds(cost)

    planned = BucketedChunkPlanner(grid, cost).plan(lengths).milliseconds(cost)

    assert planned <= 1.1 * cheapest, problem


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_plans_of_large_batches_cost_at_most_a_tenth_more_than_the_cheapest(seed: int) -> None:
    """The exact planner takes up to ten times the states of the limit for these batches."""
    for problem in islice(too_large_problems(seed, 20_000), 10):
        assert_within_a_tenth(problem, 20_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 120))
def test_plans_of_larger_batches_cost_at_most_a_tenth_more_than_the_cheapest(seed: int) -> None:
    """The exact planner takes up to half a second for these batches."""
    for problem in islice(too_large_problems(seed, 60_000), 50):
        assert_within_a_tenth(problem, 60_000)


@given(chunk_problems(max_size=12), st.integers(0, 80))
def test_a_batch_within_the_limit_has_the_exact_plan(problem: Problem, most: int) -> None:
    """States are counted, whatever the row groups."""
    grid, cost, lengths = problem
    exact = BucketedChunkPlanner(grid, cost, most_states=UNLIMITED).plan(lengths)

    planned = BucketedChunkPlanner(grid, cost, most_states=most).plan(lengths)

    if count_states(problem, most) <= most:
        assert planned == exact
    if count_states(problem, DEFAULT_STATES) <= DEFAULT_STATES:
        assert BucketedChunkPlanner(grid, cost).plan(lengths) == exact


@given(chunk_problems(max_size=40, longest=90))
def test_a_plan_without_states_is_complete(problem: Problem) -> None:
    """Every timestep of every request is computed once and in order, in buckets of the grid."""
    grid, cost, lengths = problem

    plan = BucketedChunkPlanner(grid, cost, most_states=0).plan(lengths)

    computed = [0] * len(lengths)
    for run in plan.calls:
        assert run.bucket in grid.buckets
        assert 1 <= len(run.rows) <= run.bucket.batch
        for row in run.rows:
            assert computed[row] == run.start < lengths[row]
            computed[row] += run.bucket.length
    assert all(done >= length for done, length in zip(computed, lengths, strict=True))
    assert plan.heads == BucketedChunkPlanner(grid, cost).plan(lengths).heads


@given(chunk_problems(max_size=10, longest=12))
def test_a_plan_without_states_costs_no_more_than_one_bucket_for_all(problem: Problem) -> None:
    """One bucket that holds the whole batch is an upper bound of the cost."""
    grid, cost, lengths = problem

    planned = BucketedChunkPlanner(grid, cost, most_states=0).plan(lengths).milliseconds(cost)

    for bucket in grid.buckets:
        if bucket.batch >= len(lengths) and bucket.length >= max(lengths):
            assert planned <= cost.of(bucket) * (1 + 1e-9)


def test_rows_of_one_length_run_as_one_group() -> None:
    """All calls have the batch size and the chunk of the least cost per timestep."""
    grid = BucketGrid((1, 4), (7, 61))
    cost = CostModel.proportional(grid)

    plan = BucketedChunkPlanner(grid, cost, most_states=0).plan([6100] * 4)

    assert [(tuple(run.bucket), run.start) for run in plan.calls] == [((4, 61), start) for start in range(0, 6100, 61)]
