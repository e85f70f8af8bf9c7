"""Verification finds every kind of wrong program, and accepts right ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from fake_model import make_manifest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.evaluation.difference import difference
from torchserve_neuron_lstm.archiver_ext.evaluation.reference import ReferenceOutputs, ReferenceRequest
from torchserve_neuron_lstm.archiver_ext.evaluation.verification_cases import (
    PaddingFill,
    VerificationCase,
    cases_for_bucket,
    compose_batches,
    draw_cases,
    lengths_to_try,
    poisoned_padding,
)
from torchserve_neuron_lstm.archiver_ext.evaluation.verify import (
    VerificationResult,
    merge_worst,
    verify_bucket,
    verify_planned,
)
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.errors import InvariantError
from torchserve_neuron_lstm.bucketing.execute import Pad, execute
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, ResumedState, execute_chunks
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import (
    Bucket,
    BucketGrid,
    CarriedValue,
    DynamicShape,
    ProgramRole,
    TensorSpec,
)
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.lowering.program import ChunkPrograms, LoweredModel

GRID = BucketGrid((1, 4), (3, 8))
LONGEST = 20
TOLERANCE = (1e-5, 1e-5)
Tensors = Sequence[torch.Tensor]
Right = Callable[[Tensors], list[torch.Tensor]]
Piece = Callable[[ProgramRole, Tensors], list[torch.Tensor]]

CARRIED = (CarriedValue(TensorSpec("so_far", "float32", ("batch", 2)), 0.0),)
SPLIT = ChunkPrograms(cast(torch.export.ExportedProgram, None), None, None, CARRIED)


def program(**changes: Any) -> LoweredModel:
    """A model with sums up to every timestep of x[T, B, 2] and the whole sum: two outputs of two layouts."""
    facts: dict[str, Any] = {
        "inputs": (
            TensorSpec("x", "float32", ("time", "batch", 2)),
            TensorSpec("ids", "int64", ("batch",), vocabulary=5),
        ),
        "takes_lengths": True,
        "outputs": (TensorSpec("sums", "float32", ("batch", "time", 2)), TensorSpec("whole", "float32", ("batch",))),
        "padding": "masked",
        "padding_proved": True,
        "padding_reason": "",
        "constants": {},
        "chunked": None,
        "chunking_reason": "",
        "any_shape": True,
    }
    return LoweredModel(exported=cast(torch.export.ExportedProgram, None), **{**facts, **changes})


@dataclass
class Whole:
    """A verified model over whole sequences: a function of padded tensors, planned over the grid."""

    run: Right
    made: LoweredModel = field(default_factory=program)
    manifest: Manifest = field(default_factory=make_manifest)

    def plan(self, lengths: Sequence[int]) -> Plan:
        padded = self.made.padding == "masked"
        return make_planner("sequence", GRID, CostModel.proportional(GRID), padded=padded).plan(lengths)

    def run_plan(
        self,
        plan: Plan,
        requests: Sequence[Tensors],
        lengths: Sequence[int],
        pad: Pad = pad,
        resumed: ResumedState | None = None,
    ) -> tuple[list[ReferenceOutputs], tuple[torch.Tensor, ...]]:
        made = self.made
        run = lambda bucket, tensors: self.run(tensors)  # noqa: E731
        return execute(plan, requests, lengths, made.inputs, made.outputs, made.takes_lengths, run, pad), ()


@dataclass
class InPieces:
    """The same model in chunks, for any shape."""

    run: Piece
    manifest: Manifest = field(default_factory=make_manifest)

    def plan(self, lengths: Sequence[int]) -> Plan:
        shape = DynamicShape(4, LONGEST)
        return make_planner("chunk", shape, CostModel.proportional(shape)).plan(lengths)

    def run_plan(
        self,
        plan: Plan,
        requests: Sequence[Tensors],
        lengths: Sequence[int],
        pad: Pad = pad,
        resumed: ResumedState | None = None,
    ) -> tuple[list[ReferenceOutputs], tuple[torch.Tensor, ...]]:
        made = program()
        pieces = ChunkSignature(made.inputs, made.outputs, CARRIED)
        run = lambda part, bucket, tensors: self.run(part, tensors)  # noqa: E731
        return execute_chunks(plan, requests, lengths, pieces, run, pad), ()


def eager(request: ReferenceRequest) -> ReferenceOutputs:
    """The reference for `program`."""
    x, ids = request.inputs
    return x.cumsum(0), x.sum() + ids


def right(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`program` over padded tensors, without an error."""
    x, ids, lengths = tensors
    valid = torch.arange(x.shape[0])[:, None] < lengths
    x = torch.where(valid[..., None], x, 0.0)
    return [x.cumsum(0).transpose(0, 1), x.sum((0, 2)) + ids]


def unmasked(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A program whose whole sum includes the padding."""
    return [right(tensors)[0], tensors[0].sum((0, 2)) + tensors[1]]


def last_row_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A program with an error in one row of a batch of several."""
    sums, whole = right(tensors)
    whole[-1] += 0.01 * (len(whole) > 1)
    return [sums, whole]


def last_step_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A program with an error in the last timestep of the longest sequences."""
    sums, whole = right(tensors)
    sums[:, -1] += 0.01
    return [sums, whole]


def shortest_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A program with an error for sequences of one timestep."""
    sums, whole = right(tensors)
    return [sums, whole + 0.01 * (tensors[2] == 1)]


def not_a_number(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A program that returns not-a-number."""
    return [torch.full_like(answer, float("nan")) for answer in right(tensors)]


def silent(done: int, total: int, text: str) -> None:
    """Ignore the progress."""


def check(run: Right, made: LoweredModel | None = None) -> list[VerificationResult]:
    """Verify every bucket of the grid."""
    made = made or program()
    cases = draw_cases(made, GRID, eager, silent)
    return [verify_bucket(Whole(run, made), bucket, made, cases, TOLERANCE) for bucket in GRID.buckets]


def test_a_right_program_passes_in_every_bucket() -> None:
    """Values in the padding and in dummy rows have no effect."""
    checked = check(right)

    assert all(found.passed and found.max_error < 1e-5 for found in checked)
    assert [found.bucket for found in checked] == list(GRID.buckets)


@pytest.mark.parametrize("wrong", [unmasked, last_step_off, shortest_off, not_a_number])
def test_a_wrong_program_is_found_in_every_bucket(wrong: Right) -> None:
    """The result, the size of the error and its place are reported."""
    for found in check(wrong):
        assert not found.passed
        assert found.worst_ratio > 1
        assert found.max_error >= 0.005
        assert "timesteps, row" in found.where


def test_a_program_of_another_shape_is_no_miss_but_broken() -> None:
    """The outputs are not compared."""
    with pytest.raises(InvariantError, match="declares output 'sums'"):
        check(lambda tensors: [right(tensors)[0].unsqueeze(-1), right(tensors)[1]])


def right_piece(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """The two programs of `program` in chunks, without an error."""
    if part == "head":
        ids, _, so_far = tensors
        return [so_far.sum(1) + ids]
    x, ids, lengths, so_far = tensors
    valid = torch.arange(x.shape[0])[:, None] < lengths
    sums = so_far + torch.where(valid[..., None], x, 0.0).cumsum(0)
    return [sums.transpose(0, 1).contiguous(), sums[-1].contiguous()]


def forgetful(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """A program that resets its state with every chunk."""
    return right_piece(part, tensors if part == "head" else [*tensors[:3], torch.zeros_like(tensors[3])])


def heedless(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """A program whose state includes the padding of a chunk."""
    if part == "head":
        return right_piece(part, tensors)
    return right_piece(part, [*tensors[:2], torch.full_like(tensors[2], len(tensors[0])), tensors[3]])


def wrong_head(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """A head that takes the lengths of the chunk for those of the sequence."""
    answers = right_piece(part, tensors)
    return [answers[0] + 0.01 * (tensors[1] > 1)] if part == "head" else answers


def check_pieces(run: Piece, longest: int = LONGEST) -> list[VerificationResult]:
    """Verify every bucket of the grid, with sequences longer than the longest bucket."""
    made = program(chunked=SPLIT)
    cases = draw_cases(made, GRID, eager, silent, longest=longest)
    return [verify_bucket(InPieces(run), bucket, made, cases, TOLERANCE) for bucket in GRID.buckets]


def test_right_pieces_pass_in_every_bucket() -> None:
    """A bucket is a chunk; some sequences need several chunks."""
    assert all(found.passed and found.max_error < 1e-5 for found in check_pieces(right_piece))


@pytest.mark.parametrize("wrong", [forgetful, heedless, wrong_head])
def test_wrong_pieces_are_found_in_every_bucket(wrong: Piece) -> None:
    """Examples are a lost state, a wrong state, and a wrong head."""
    assert all(not found.passed for found in check_pieces(wrong))


def test_every_piece_hands_its_state_on_where_there_is_a_longer_bucket() -> None:
    """Without longer sequences, the longest bucket would never be followed by another chunk."""
    found = check_pieces(forgetful, longest=8)

    assert [one.passed for one in found] == [False, True, False, True]


def test_plans_are_tried_in_shapes_that_no_bucket_has() -> None:
    """An error in a shape between the buckets is found only there."""
    made = program(chunked=SPLIT)
    cases = draw_cases(made, GRID, eager, silent)
    seen: set[int] = set()

    def odd(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
        answers = right_piece(part, tensors)
        if part == "chunk":
            seen.add(len(tensors[0]))
            answers[1] += 0.01 * (len(tensors[0]) not in GRID.lengths)
        return answers

    assert all(verify_bucket(InPieces(odd), bucket, made, cases, TOLERANCE).passed for bucket in GRID.buckets)
    assert seen == set(GRID.lengths)
    assert not verify_planned(InPieces(odd), made, cases, 4, TOLERANCE).passed
    assert verify_planned(InPieces(right_piece), made, cases, 4, TOLERANCE).passed


def test_the_worse_of_two_is_worse_in_every_respect() -> None:
    """The larger error and the larger share of the tolerance may be in different results."""
    one = VerificationResult(Bucket(1, 3), 0.5, 0.9, "one")
    other = VerificationResult(Bucket(4, 8), 0.1, 2.0, "other")

    assert merge_worst(one, other) == VerificationResult(Bucket(1, 3), 0.5, 2.0, "other")
    assert merge_worst(other, one) == VerificationResult(Bucket(4, 8), 0.5, 2.0, "other")


def test_an_error_in_one_row_is_found() -> None:
    """It is found in buckets of several rows only."""
    assert [found.passed for found in check(last_row_off)] == [True, True, False, False]


def test_a_program_that_may_not_be_padded_sees_its_own_lengths_only() -> None:
    """Every row of every batch is as long as the bucket."""
    exact = program(padding="exact_lengths")
    seen = set()

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        seen.add((tensors[0].shape[0], *tensors[2].tolist()))
        return right(tensors)

    cases = draw_cases(exact, GRID, eager, silent)
    for bucket in GRID.buckets:
        verify_bucket(Whole(run, exact), bucket, exact, cases, TOLERANCE)

    real = {(length, *(set(rows) - {1})) for length, *rows in seen}  # rows to spare have length 1
    assert real == {(3, 3), (8, 8)}


def test_a_model_that_answers_nothing_finite_is_refused() -> None:
    """Not-a-number in both results would prove nothing."""
    with pytest.raises(PackagingError, match="are NaN or infinite"):
        draw_cases(program(), GRID, lambda request: (torch.tensor([float("nan")]),), silent)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True).map(lambda some: tuple(sorted(some))),
    batch=st.integers(1, 9),
    data=st.data(),
)
def test_every_bucket_sees_its_longest_and_the_shortest_request(
    lengths: tuple[int, ...], batch: int, data: st.DataObject
) -> None:
    """Batches have the bucket's rows, lengths that fit, and the required cases.

    Those are the maximum length, length 1, and a request of a smaller bucket.
    """
    cases = [VerificationCase(ReferenceRequest(length, ()), ()) for length in lengths_to_try(lengths, padded=True)]
    bucket = Bucket(batch, data.draw(st.sampled_from(lengths)))
    batches = compose_batches(bucket, cases_for_bucket(bucket, cases, program()))
    seen = {case.request.length for made in batches for case in made.cases}

    assert all(1 <= len(made.cases) <= batch for made in batches)
    assert {1, bucket.length} <= seen
    assert max(seen) == bucket.length
    assert {"pad_value", "random"} <= {made.padding for made in batches} or len(batches) < 3
    assert batch == 1 or any(len(made.cases) < batch for made in batches)


@given(st.integers(1, 9), st.integers(1, 30))
def test_a_piece_sees_what_needs_several_of_it(batch: int, length: int) -> None:
    """The number of chunks is limited, to save time."""
    cases = [
        VerificationCase(ReferenceRequest(timesteps, ()), ())
        for timesteps in lengths_to_try((length, 100), padded=True)
    ]
    lengths = {case.request.length for case in cases_for_bucket(Bucket(batch, length), cases, program(chunked=SPLIT))}

    assert lengths == {case.request.length for case in cases if case.request.length <= 3 * length}
    assert max(lengths) > length
    batches = compose_batches(
        Bucket(batch, length), cases_for_bucket(Bucket(batch, length), cases, program(chunked=SPLIT))
    )
    assert max(case.request.length for made in batches for case in made.cases) == max(lengths)


def test_the_same_seed_draws_the_same() -> None:
    """Verification is reproducible."""
    one, other = (draw_cases(program(), GRID, eager, silent) for _ in range(2))

    assert all(
        torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x.expected, y.expected, strict=True)
    )


@pytest.mark.parametrize("padding", ["pad_value", "large", "random"])
def test_padding_is_filled_and_requests_are_left(padding: PaddingFill) -> None:
    """Frames get arbitrary values, ids a valid one: an engine may abort on others."""
    frames, ids = program().inputs
    pad = poisoned_padding(padding, torch.Generator().manual_seed(0))
    items = [torch.full((length, 2), 0.5) for length in (3, 1)]

    padded = pad(items, frames, Bucket(4, 8))
    numbers = pad([torch.tensor(4), torch.tensor(2)], ids, Bucket(4, 8))

    assert [torch.equal(padded[: len(item), row], item) for row, item in enumerate(items)] == [True, True]
    rubbish = torch.cat([padded[3:, 0], padded[1:, 1], padded[:, 2], padded[:, 3]])
    assert bool((rubbish == 0).all()) == (padding == "pad_value")
    assert bool((rubbish == 1e4).all()) == (padding == "large")
    assert numbers[:2].tolist() == [4, 2]
    assert bool(((numbers >= 0) & (numbers < 5)).all())


@given(st.floats(allow_nan=True), st.floats(allow_nan=True))
def test_a_difference_is_finite_only_between_finite_numbers_or_equals(ours: float, theirs: float) -> None:
    """The difference of equal values is 0, also for infinite ones and not-a-number.

    A finite value differs from one that is not finite by infinity.
    """
    a, b = torch.tensor([ours], dtype=torch.float64), torch.tensor([theirs], dtype=torch.float64)
    error, ratio = difference(a, b, (1e-5, 1e-5))
    same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))

    assert (error == 0 == ratio) if same else error > 0
    assert same or bool(torch.isfinite(a) & torch.isfinite(b)) or error == ratio == float("inf")
