from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from fake_model import make_manifest

from torchserve_neuron_lstm.archiver_ext.evaluation import verify
from torchserve_neuron_lstm.archiver_ext.evaluation.verification_cases import draw_cases
from torchserve_neuron_lstm.archiver_ext.evaluation.verify import VerificationResult, verify_bucket, verify_planned
from torchserve_neuron_lstm.archiver_ext.evaluation.verify_programs import kinds_beyond_tolerance
from torchserve_neuron_lstm.bucketing.errors import InvariantError
from torchserve_neuron_lstm.bucketing.shapes import Bucket, ProgramRole
from torchserve_neuron_lstm.config.manifest import ErrorTolerance
from torchserve_neuron_lstm.lowering.program import LoweredModel

from . import summing_model
from .summing_model import GRID, TOLERANCE, InChunks, Right, Tensors, Whole, eager, program, right, right_chunk, silent


def last_row_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    sums, whole = right(tensors)
    whole[-1] += 0.01 * (len(whole) > 1)
    return [sums, whole]


def last_step_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    sums, whole = right(tensors)
    sums[:, -1] += 0.01
    return [sums, whole]


def shortest_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    sums, whole = right(tensors)
    return [sums, whole + 0.01 * (tensors[2] == 1)]


def saturated(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return right([tensors[0].clamp(-40, 40), *tensors[1:]])


def not_a_number(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.full_like(answer, float("nan")) for answer in right(tensors)]


def check(run: Right, made: LoweredModel | None = None) -> list[VerificationResult]:
    made = made or program()
    cases = draw_cases(made, GRID, eager, silent)
    return [verify_bucket(Whole(run, made), bucket, made, cases, TOLERANCE) for bucket in GRID.buckets]


def test_a_right_program_passes_in_every_bucket() -> None:
    checked = check(right)

    assert all(found.passed and found.max_error < 1e-5 for found in checked)
    assert [found.bucket for found in checked] == list(GRID.buckets)


UNMASKED = pytest.param(lambda inputs: [right(inputs)[0], inputs[0].sum((0, 2)) + inputs[1]], id="whole sum of padding")


@pytest.mark.parametrize("wrong", [UNMASKED, last_step_off, shortest_off, not_a_number])
def test_a_wrong_program_is_found_in_every_bucket(wrong: Right) -> None:
    for found in check(wrong):
        assert not found.passed
        assert found.worst_ratio > 1
        assert found.max_error >= 0.005
        assert "timesteps" in found.where


def test_a_program_of_another_shape_is_no_miss_but_broken() -> None:
    with pytest.raises(InvariantError, match="declares output 'sums'"):
        check(lambda tensors: [right(tensors)[0].unsqueeze(-1), right(tensors)[1]])


def test_a_position_outside_of_a_row_that_fills_a_batch_is_an_error_with_a_remedy() -> None:
    def counted(tensors: Tensors) -> list[torch.Tensor]:
        found = right(tensors)
        return [found[0], found[1] + tensors[0][tensors[0].shape[0] + tensors[1].max()].sum(-1)]

    with pytest.raises(verify.FailsOnPadding, match=r"out of bounds.*computes from values.*from the lengths, or clamp"):
        check(counted)


def heedless(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """A program whose state includes the padding of a chunk."""
    if part == "head":
        return right_chunk(part, tensors)
    return right_chunk(part, [*tensors[:2], torch.full_like(tensors[2], len(tensors[0])), tensors[3]])


def wrong_head(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """A head that takes the lengths of the chunk for those of the sequence."""
    answers = right_chunk(part, tensors)
    return [answers[0] + 0.01 * (tensors[1] > 1)] if part == "head" else answers


def check_chunks(run: summing_model.ChunkRun, longest: int = summing_model.LONGEST) -> list[VerificationResult]:
    made = program(chunked=summing_model.SPLIT)
    cases = draw_cases(made, GRID, eager, silent, longest=longest)
    return [verify_bucket(InChunks(run), bucket, made, cases, TOLERANCE) for bucket in GRID.buckets]


def test_right_chunks_pass_in_every_bucket() -> None:
    assert all(found.passed and found.max_error < 1e-5 for found in check_chunks(right_chunk))


@pytest.mark.parametrize("wrong", [summing_model.forgetful, heedless, wrong_head])
def test_wrong_chunks_are_found_in_every_bucket(wrong: summing_model.ChunkRun) -> None:
    assert all(not found.passed for found in check_chunks(wrong))


def test_every_chunk_hands_its_state_on_where_there_is_a_longer_bucket() -> None:
    """Without longer sequences, the longest bucket would never be followed by another chunk."""
    found = check_chunks(summing_model.forgetful, longest=8)

    assert [one.passed for one in found] == [False, True, False, True]


def test_plans_are_tried_in_shapes_that_no_bucket_has() -> None:
    made = program(chunked=summing_model.SPLIT)
    cases = draw_cases(made, GRID, eager, silent)
    seen: set[int] = set()

    def odd(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
        answers = right_chunk(part, tensors)
        if part == "chunk":
            seen.add(len(tensors[0]))
            answers[1] += 0.01 * (len(tensors[0]) not in GRID.lengths)
        return answers

    assert all(verify_bucket(InChunks(odd), bucket, made, cases, TOLERANCE).passed for bucket in GRID.buckets)
    assert seen == set(GRID.lengths)
    assert not verify_planned(InChunks(odd), made, cases, 4, TOLERANCE).passed
    assert verify_planned(InChunks(right_chunk), made, cases, 4, TOLERANCE).passed


def test_values_far_from_1_are_run_in_planned_batches() -> None:
    made = program()
    cases = draw_cases(made, GRID, eager, silent)
    near_1 = [case for case in cases if case.kind is None]

    assert verify_planned(Whole(saturated, made), made, near_1, 4, TOLERANCE).passed
    worst = verify_planned(Whole(saturated, made), made, cases, 4, TOLERANCE)
    assert not worst.passed
    assert "with values of about 300" in worst.where


def test_the_kinds_of_values_beyond_the_tolerance_of_a_lower_precision_are_named() -> None:
    made = program()
    cases = draw_cases(made, GRID, eager, silent)

    manifest = replace(make_manifest(made.inputs, made.outputs, tolerance=ErrorTolerance(1e-2, 1e-2)), grid=GRID)
    low = Whole(saturated, made, replace(manifest, precision="bfloat16"))

    assert kinds_beyond_tolerance(low, cases) == ("of about 300", "about 50", "about -50")
    assert kinds_beyond_tolerance(replace(low, manifest=manifest), cases) == ()


def test_the_worse_of_two_is_worse_in_every_respect() -> None:
    one = VerificationResult(Bucket(1, 3), 0.5, 0.9, "one")
    other = VerificationResult(Bucket(4, 8), 0.1, 2.0, "other")

    assert verify.merge_worst(one, other) == VerificationResult(Bucket(1, 3), 0.5, 2.0, "other")
    assert verify.merge_worst(other, one) == VerificationResult(Bucket(4, 8), 0.5, 2.0, "other")


def test_an_error_in_one_row_is_found() -> None:
    assert [found.passed for found in check(last_row_off)] == [True, True, False, False]


def test_rows_that_agree_alone_only_are_explained() -> None:
    alone, both = (VerificationResult(Bucket(rows, 4), 1.0, ratio, "y") for rows, ratio in ((1, 0.5), (2, 9.0)))

    assert "right alone, but not in a batch" in str(verify.ToleranceExceeded("eager", [alone, both], (1e-5, 1e-5)))
    for results in ([both], [alone, replace(both, kind="near 0")]):
        assert "right alone" not in str(verify.ToleranceExceeded("eager", results, (1e-5, 1e-5)))
