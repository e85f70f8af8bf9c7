"""Properties of every planner.

Every timestep of every request is computed once, and in order. Only lengths that fit no bucket are refused. Neither the
order of the requests nor earlier plans change the calls.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import useful_timesteps

from torchserve_neuron_lstm.bucketing import planner as planning
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.errors import SequenceTooLong
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.planner import BucketSelector, Planner, make_planner, tabulate_selector
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, DynamicShape

from .strategies import chunk_problems, free_problems, grids, problems

Problem = tuple[Planner, list[int]]
GRID = BucketGrid((1, 4), (8, 16))
SHAPE = DynamicShape(batch=4, length=16)
EXAMPLES: dict[str, Callable[[], Planner]] = {
    "partition of a grid": lambda: make_planner("sequence", GRID, CostModel.proportional(GRID)),
    "partition of any shape": lambda: make_planner("sequence", SHAPE, CostModel.proportional(SHAPE)),
    "chunks of a grid": lambda: make_planner("chunk", GRID, CostModel.proportional(GRID), longest=16),
    "chunks of any shape": lambda: make_planner("chunk", SHAPE, CostModel.proportional(SHAPE)),
}


@st.composite
def sequence_problems(draw: st.DrawFn) -> Problem:
    if draw(st.booleans()):
        grid, cost, lengths = draw(problems(max_size=40))
        return make_planner("sequence", grid, cost), lengths
    shape, cost, lengths = draw(free_problems(max_size=40))
    return make_planner("sequence", shape, cost), lengths


@st.composite
def staircase_problems(draw: st.DrawFn) -> Problem:
    if draw(st.booleans()):
        shape, cost, lengths = draw(free_problems(max_size=40))
        return make_planner("chunk", shape, cost), lengths
    grid, cost, lengths = draw(chunk_problems(max_size=40, longest=90))
    return make_planner("chunk", grid, cost), lengths


def all_problems() -> st.SearchStrategy[Problem]:
    return sequence_problems() | staircase_problems()


def longest_first(lengths: Sequence[int]) -> list[int]:
    """The places of the lengths, the longest first, equal ones in their order."""
    return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


def assert_fits(run: ProgramCall, lengths: Sequence[int]) -> None:
    assert 1 <= len(run.rows) <= run.bucket.batch
    assert list(run.rows) == [row for row in longest_first(lengths) if row in run.rows]


@given(sequence_problems())
def test_every_request_is_in_one_run_that_holds_it(problem: Problem) -> None:
    planner, lengths = problem

    result = planner.plan(lengths)

    assert sorted(row for run in result.calls for row in run.rows) == list(range(len(lengths)))
    assert result.heads == ()
    for run in result.calls:
        assert_fits(run, lengths)
        assert run.start == 0
        assert max(lengths[row] for row in run.rows) <= run.bucket.length


@given(staircase_problems())
def test_the_chunks_of_a_request_follow_each_other_to_its_end(problem: Problem) -> None:
    planner, lengths = problem
    reached = [0] * len(lengths)

    for run in planner.plan(lengths).calls:
        assert_fits(run, lengths)
        for row in run.rows:
            assert run.start == reached[row] < lengths[row]
            reached[row] += run.bucket.length

    assert all(end >= length for end, length in zip(reached, lengths, strict=True))


@given(staircase_problems())
def test_rows_stand_together_in_the_longest_first_order(problem: Problem) -> None:
    """A call's rows are consecutive in that order, so that states keep the order and are never gathered."""
    planner, lengths = problem
    order = longest_first(lengths)

    result = planner.plan(lengths)

    for run in (*result.calls, *result.heads):
        first = order.index(run.rows[0])
        assert list(run.rows) == order[first : first + len(run.rows)]


@given(staircase_problems())
def test_every_request_is_in_one_head(problem: Problem) -> None:
    planner, lengths = problem

    heads = planner.plan(lengths).heads

    assert [row for head in heads for row in head.rows] == longest_first(lengths)
    for head in heads:
        assert_fits(head, lengths)
        assert (head.bucket.length, head.start) == (1, 0)


@given(all_problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_requests_does_not_change_the_calls(problem: Problem, random: Random) -> None:
    planner, lengths = problem
    shuffled = random.sample(lengths, len(lengths))

    def calls(result: Plan, own: list[int]) -> list[tuple[Bucket, int, list[int]]]:
        return [(run.bucket, run.start, [own[row] for row in run.rows]) for run in (*result.calls, *result.heads)]

    assert calls(planner.plan(shuffled), shuffled) == calls(planner.plan(lengths), lengths)


@given(all_problems())
def test_the_same_batch_is_planned_the_same_again(problem: Problem) -> None:
    planner, lengths = problem

    first = planner.plan(lengths)
    planner.plan(lengths[::-1])

    assert planner.plan(lengths) == first


@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)
def test_planners_of_the_same_shapes_and_costs_plan_alike(make: Callable[[], Planner]) -> None:
    """Also a batch in which every request was refused is planned: it needs no run."""
    for lengths in ([3, 16, 9, 9, 1, 12, 2], []):
        assert make().plan(lengths) == make().plan(lengths)
    assert make().plan([]) == Plan(())


@pytest.mark.parametrize("bad", [0, -1])
@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)
def test_an_empty_sequence_is_named_by_its_place(make: Callable[[], Planner], bad: int) -> None:
    """Engines refuse a length of 0."""
    with pytest.raises(ValueError, match=f"request 1 has {bad} timesteps"):
        make().plan([3, bad, 8])


@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)
@given(lengths=st.lists(st.integers(1, 24), min_size=1, max_size=6))
def test_exactly_the_lengths_beyond_the_limit_are_refused(make: Callable[[], Planner], lengths: list[int]) -> None:
    if max(lengths) > 16:
        with pytest.raises(SequenceTooLong) as refusal:
            make().plan(lengths)
        assert str(refusal.value) in {str(SequenceTooLong(max(lengths), edges)) for edges in ((16,), (8, 16))}
    else:
        assert useful_timesteps(make().plan(lengths), lengths) == sum(lengths)


@given(chunk_problems())
def test_chunks_have_no_limit_unless_one_is_given(problem: tuple[BucketGrid, CostModel, list[int]]) -> None:
    grid, cost, lengths = problem

    longer = [*lengths, 40 * grid.lengths[-1]]

    assert useful_timesteps(make_planner("chunk", grid, cost).plan(longer), longer) == sum(longer)


def test_requests_of_one_length_keep_their_order() -> None:
    for make in EXAMPLES.values():
        first = [row for run in make().plan([5, 8, 5, 8, 5]).calls for row in run.rows if run.start == 0]
        assert first == [1, 3, 0, 2, 4]


LENGTHS = (4, 8)


@given(grids(), st.data())
def test_whatever_holds_the_sequence_may_be_chosen(grid: BucketGrid, data: st.DataObject) -> None:
    choices = [
        data.draw(st.sampled_from([i for i, own in enumerate(grid.lengths) if own >= length]))
        for length in range(1, grid.lengths[-1] + 1)
    ]

    table = tabulate_selector(lambda length, lengths: choices[length - 1], grid.lengths)

    assert table == tuple(grid.lengths[choice] for choice in choices)


class Index:
    def __index__(self) -> int:
        return 1


def test_a_number_of_another_library_is_an_index() -> None:
    assert tabulate_selector(lambda length, lengths: Index(), LENGTHS) == (8,) * 8  # type: ignore[arg-type,return-value]  # no int


def forgetful() -> BucketSelector:
    asked: list[int] = []

    def choose(length: int, lengths: tuple[int, ...]) -> int:
        asked.append(length)
        return 1 if length > 4 or len(asked) > 8 else 0

    return choose


@pytest.mark.parametrize(
    ("choose", "complaints", "number"),
    [
        (lambda length, lengths: 0, ["5 timesteps: 0, which is the length 4: too short", "8 timesteps: 0, which"], 4),
        (lambda length, lengths: 2, ["1 timesteps: 2, but the lengths have the indices 0 to 1", "and 3 more"], 5),
        (lambda length, lengths: -1, ["1 timesteps: -1, but"], 5),
        (lambda length, lengths: True, ["1 timesteps: True is no index"], 5),
        (lambda length, lengths: 1.0, ["1 timesteps: 1.0 is no index"], 5),
        (lambda length, lengths: None, ["1 timesteps: None is no index"], 5),
        (lambda: 0, ["1 timesteps: TypeError"], 5),
        (lambda n, lengths: bisect_left(lengths, n) + 0 // (n - 7), ["7 timesteps: ZeroDivisionError"], 1),
        (forgetful(), ["1 timesteps: 0, and 1 when called again", "4 timesteps: 0, and 1 when called again"], 4),
    ],
)
def test_a_choice_that_goes_wrong_is_told_by_the_first_lengths(
    choose: Callable[..., int], complaints: list[str], number: int
) -> None:
    with pytest.raises(planning.BucketSelectorError) as refused:
        tabulate_selector(choose, LENGTHS)

    text = str(refused.value)
    for complaint in complaints:
        assert complaint in text
    assert text.count(" timesteps: ") == number
