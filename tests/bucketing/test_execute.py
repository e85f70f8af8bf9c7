from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.errors import InvariantError
from torchserve_neuron_lstm.bucketing.execute import Tensors, execute
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, TensorSpec

from .strategies import problems

Problem = tuple[BucketGrid, CostModel, list[int]]

FRAMES = TensorSpec("frames", "float64", ("time", "batch", 2), pad_value=-3.0)
BIAS = TensorSpec("bias", "float64", ("batch", 2))
RUNNING = TensorSpec("running", "float64", ("batch", 2, "time"))
TOTAL = TensorSpec("total", "float64", ("batch", 2))
RIGHT = [torch.zeros(2, 2, 3).double(), torch.zeros(2, 2).double()]


def running_sums(frames: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The answers to one request alone: sums so far [2, T], and over all its time [2]."""
    sums = (frames + bias).cumsum(0)
    return sums.t(), sums[-1]


class Hostile:
    """A program that computes `running_sums` for a padded batch; other values are arbitrary."""

    def __init__(self) -> None:
        self.buckets: list[Bucket] = []

    def __call__(self, bucket: Bucket, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        frames, bias, lengths = inputs
        assert frames.shape == (bucket.length, bucket.batch, 2)
        assert bias.shape == (bucket.batch, 2)
        assert lengths.shape == (bucket.batch,)
        self.buckets.append(bucket)
        running = torch.full(RUNNING.sizes(*bucket), float("nan")).double()
        total = torch.full(TOTAL.sizes(*bucket), 1e30).double()
        for row, length in enumerate(lengths.tolist()):
            if not bool((frames[:, row] == FRAMES.pad_value).all()):  # a dummy row gets no answer
                running[row, :, :length], total[row] = running_sums(frames[:length, row], bias[row])
        return running, total


def request_of(length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A request: frames [T, 2] and bias [2]."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.rand(length, 2, generator=generator, dtype=torch.float64)
    return frames, torch.rand(2, generator=generator, dtype=torch.float64)


def answers_of(
    plan: Plan,
    requests: Sequence[Sequence[torch.Tensor]],
    lengths: list[int],
    run: Callable[[Bucket, list[torch.Tensor]], Sequence[torch.Tensor]],
) -> list[Tensors]:
    return execute(plan, requests, lengths, [FRAMES, BIAS], [RUNNING, TOTAL], takes_lengths=True, run=run)


@given(problems(max_size=20), st.integers(0, 1000))
def test_every_request_gets_its_own_answer_in_its_own_place(problem: Problem, seed: int) -> None:
    grid, cost, lengths = problem
    requests = [request_of(length, seed + row) for row, length in enumerate(lengths)]
    program = Hostile()
    steps = make_planner("sequence", grid, cost).plan(lengths)

    answers = answers_of(steps, requests, lengths, program)

    assert len(answers) == len(requests)
    for request, (running, total) in zip(requests, answers, strict=True):
        alone_running, alone_total = running_sums(*request)
        assert torch.equal(running, alone_running)
        assert torch.equal(total, alone_total)
    assert program.buckets == [run.bucket for run in steps.calls]


def test_answers_are_views_of_what_the_program_returned() -> None:
    lengths = [3, 1, 2]
    requests = [request_of(length, length) for length in lengths]
    program = Hostile()
    returned: list[torch.Tensor] = []

    def run(bucket: Bucket, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        returned.extend(results := program(bucket, inputs))
        return results

    plan = Plan((ProgramCall(Bucket(2, 3), (0, 2)), ProgramCall(Bucket(1, 1), (1,))))
    answers = answers_of(plan, requests, lengths, run)

    theirs = {tensor.untyped_storage().data_ptr() for tensor in returned}
    assert {part.untyped_storage().data_ptr() for answer in answers for part in answer} == theirs
    for number, answer in enumerate(answers):
        for part in answer:
            part.fill_(number)
    assert [[part.unique().tolist() for part in answer] for answer in answers] == [[[n], [n]] for n in range(3)]


def test_a_program_without_lengths_is_given_none() -> None:
    ids = TensorSpec("ids", "int64", ("batch", "time"))
    seen: list[list[torch.Tensor]] = []

    def double(bucket: Bucket, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        seen.append(inputs)
        return [inputs[0] * 2]

    plan = Plan((ProgramCall(Bucket(2, 3), (0,)),))
    answers = execute(plan, [[torch.tensor([4, 5])]], [2], [ids], [ids], takes_lengths=False, run=double)

    assert [[part.tolist() for part in answer] for answer in answers] == [[[8, 10]]]
    assert [[tensor.tolist() for tensor in inputs] for inputs in seen] == [[[[4, 5, 0], [0, 0, 0]]]]


def test_a_model_without_batch_or_time_runs_one_request_at_a_time() -> None:
    point = TensorSpec("point", "float32", (2,))
    steps = Plan((ProgramCall(Bucket(1, 1), (1,)), ProgramCall(Bucket(1, 1), (0,))))

    answers = execute(
        steps,
        [[torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])]],
        [1, 1],
        [point],
        [point],
        takes_lengths=False,
        run=lambda bucket, inputs: [inputs[0] + 1],
    )

    assert [answer[0].tolist() for answer in answers] == [[2.0, 3.0], [4.0, 5.0]]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], r"bucket 2 x 3 declares 2 outputs and returned 0"),
        (RIGHT[:1], r"declares 2 outputs and returned 1"),
        (
            [torch.zeros(2, 2, 4).double(), RIGHT[1]],
            r"output 'running' as float64 \[2, 2, 3\] and returned float64 \[2, 2, 4\]",
        ),
        ([RIGHT[0], RIGHT[1][:1]], r"output 'total' as float64 \[2, 2\] and returned float64 \[1, 2\]"),
        ([RIGHT[0], RIGHT[1].float()], r"output 'total' as float64 \[2, 2\] and returned float32 \[2, 2\]"),
    ],
)
def test_a_program_that_breaks_its_declaration_is_a_bug(returned: list[torch.Tensor], message: str) -> None:
    with pytest.raises(InvariantError, match=f"this is a bug.*{message}"):
        answers_of(Plan((ProgramCall(Bucket(2, 3), (0,)),)), [request_of(2, 0)], [2], lambda bucket, inputs: returned)


def test_a_plan_that_leaves_a_request_out_is_a_bug() -> None:
    with pytest.raises(InvariantError, match=r"this is a bug.*the plan for 2 requests contains \[1\]"):
        answers_of(Plan((ProgramCall(Bucket(1, 2), (1,)),)), [request_of(2, 0), request_of(2, 1)], [2, 2], Hostile())


def test_a_request_that_is_not_as_declared_is_not_a_bug_of_ours() -> None:
    frames, bias = request_of(2, 0)

    with pytest.raises(ValueError, match=r"bias, item 0: expected float64 \[2\], got float64 \[3\]"):
        answers_of(Plan((ProgramCall(Bucket(1, 2), (0,)),)), [(frames, torch.cat([bias, bias[:1]]))], [2], Hostile())


def test_no_two_outputs_share_memory_nor_does_one_with_an_input() -> None:
    ids = TensorSpec("ids", "int64", ("batch", "time"))
    last = TensorSpec("last", "int64", ("batch",))
    request = torch.tensor([1, 2, 3])

    def program(bucket: Bucket, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        doubled = inputs[0] * 2
        return [doubled, doubled, doubled[:, -1], inputs[0]]

    plan = Plan((ProgramCall(Bucket(1, 3), (0,)),))

    (answer,) = execute(plan, [[request]], [3], [ids], [ids, ids, last, ids], takes_lengths=False, run=program)
    for part in answer:
        part.zero_()
        assert all(bool((other != 0).all()) for other in answer if other is not part)
        part.fill_(7)

    assert request.tolist() == [1, 2, 3]
