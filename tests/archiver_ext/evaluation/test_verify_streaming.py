"""Verification of streams: errors between two chunks are found, and right programs pass for any cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
import torch
from streaming_archive import streaming_manifest

from torchserve_neuron_lstm.archiver_ext.evaluation.reference import ReferenceOutputs, ReferenceRequest
from torchserve_neuron_lstm.archiver_ext.evaluation.verification_cases import VerificationCase
from torchserve_neuron_lstm.archiver_ext.evaluation.verify import VerificationResult
from torchserve_neuron_lstm.archiver_ext.evaluation.verify_streaming import verify_streaming
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import Pad
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, ResumedState, resume_chunks
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, CarriedValue, DynamicShape, ProgramRole, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.lowering.program import ChunkPrograms, LoweredModel

ROWS, LONGEST = 4, 24
TOLERANCE = (1e-5, 1e-5)
Tensors = Sequence[torch.Tensor]
Piece = Callable[[ProgramRole, Tensors], list[torch.Tensor]]

CARRIED = (CarriedValue(TensorSpec("so_far", "float32", ("batch", 2)), 0.0),)
INPUTS = (TensorSpec("x", "float32", ("time", "batch", 2)), TensorSpec("ids", "int64", ("batch",), vocabulary=5))
OUTPUTS = (TensorSpec("sums", "float32", ("batch", "time", 2)), TensorSpec("whole", "float32", ("batch",)))


def program() -> LoweredModel:
    """A model with sums up to every timestep of x[T, B, 2], and the whole sum with an id."""
    nothing = cast(torch.export.ExportedProgram, None)
    return LoweredModel(
        exported=nothing,
        inputs=INPUTS,
        takes_lengths=True,
        outputs=OUTPUTS,
        constants={},
        padding="masked",
        padding_proved=True,
        padding_reason="",
        chunked=ChunkPrograms(nothing, None, None, CARRIED),
        chunking_reason="",
        any_shape=True,
    )


def cases() -> list[VerificationCase]:
    """Cases of lengths from 1 to the longest, with the right answers."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for length in (1, 2, 3, 7, 12, LONGEST):
        x, ids = torch.randn(length, 2, generator=rng), torch.randint(5, (), generator=rng)
        found.append(VerificationCase(ReferenceRequest(length, (x, ids)), (x.cumsum(0), x.sum() + ids)))
    return found


@dataclass
class Served:
    """The served model, whose programs are a function of padded tensors."""

    run: Piece
    manifest: Manifest = field(default_factory=lambda: streaming_manifest(None, carried=CARRIED))
    pasts: list[ResumedState] = field(default_factory=list)
    swapped: bool = False
    """Whether the sessions of a batch are interchanged."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        shape = DynamicShape(ROWS, LONGEST)
        return make_planner("chunk", shape, CostModel.proportional(shape)).plan(lengths)

    def run_plan(
        self,
        plan: Plan,
        requests: Sequence[Tensors],
        lengths: Sequence[int],
        pad: Pad = pad,
        resumed: ResumedState | None = None,
    ) -> tuple[list[ReferenceOutputs], tuple[torch.Tensor, ...]]:
        assert resumed is not None
        self.pasts.append(resumed)
        signature = ChunkSignature(INPUTS, OUTPUTS, CARRIED)

        def run(part: ProgramRole, bucket: Bucket, tensors: Tensors) -> list[torch.Tensor]:
            return self.run(part, tensors)

        answers, carried = resume_chunks(plan, requests, lengths, signature, run, resumed)
        return answers, tuple(value.flip(0) for value in carried) if self.swapped else carried


def right(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """Both programs, without an error."""
    if part == "head":
        ids, _, so_far = tensors
        return [so_far.sum(1) + ids]
    x, _, lengths, so_far = tensors
    valid = torch.arange(x.shape[0])[:, None] < lengths
    sums = so_far + torch.where(valid[..., None], x, 0.0).cumsum(0)
    return [sums.transpose(0, 1).contiguous(), sums[-1].contiguous()]


def forgetful(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """Programs that reset the state with every chunk."""
    return right(part, tensors if part == "head" else [*tensors[:3], torch.zeros_like(tensors[3])])


def fading(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """Programs whose carry is a little too small."""
    answers = right(part, tensors)
    return answers if part == "head" else [answers[0], answers[1] * 0.999]


def heedless(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """Programs whose state includes values beyond the end of a chunk."""
    if part == "head":
        return right(part, tensors)
    x, ids, lengths, so_far = tensors
    beyond = torch.arange(x.shape[0])[:, None] >= lengths
    answers = right(part, [x, ids, lengths, so_far])
    return [answers[0], answers[1] + 0.5 * beyond.sum(0)[:, None]]


def counting_pieces(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """A program that takes the length of the last chunk for the length of the sequence.

    The error shows only at a head with more than one long chunk, or with a single chunk.
    """
    answers = right(part, tensors)
    return [answers[0] + (tensors[1] == LONGEST)] if part == "head" else answers


def not_a_number(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """Programs whose carry is not-a-number."""
    answers = right(part, tensors)
    return answers if part == "head" else [answers[0], torch.full_like(answers[1], torch.nan)]


def check(model: Served, rows: int = ROWS, seed: int = 0) -> VerificationResult:
    """Verify as packaging does."""
    return verify_streaming(model, program(), cases(), rows, TOLERANCE, seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [1, ROWS])
def test_a_right_program_passes(rows: int, seed: int) -> None:
    """This includes batches of one row."""
    found = check(Served(right), rows, seed)

    assert found.passed
    assert found.max_error < 1e-5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("wrong", [forgetful, fading, heedless, counting_pieces, not_a_number])
def test_a_wrong_carry_is_found(wrong: Piece, seed: int) -> None:
    """It is found for any cuts, and reported with the output and the chunks."""
    found = check(Served(wrong), seed=seed)

    assert not found.passed
    assert found.worst_ratio > 1
    assert " of a session in chunks of [" in found.where


@pytest.mark.parametrize("seed", range(5))
def test_states_that_go_to_another_session_are_caught(seed: int) -> None:
    """Each program is right, but the rows are interchanged between them."""
    found = check(Served(right, swapped=True), seed=seed)

    assert not found.passed


def test_a_batch_holds_sessions_that_begin_and_sessions_that_go_on() -> None:
    """Serving has such batches, with sessions of different ages."""
    model = Served(right)
    check(model)

    assert any(not past.rows for past in model.pasts)
    assert any(past.rows and 0 not in past.rows for past in model.pasts)
    assert any(len(set(past.offsets)) > 1 for past in model.pasts)


def test_the_same_seed_tries_the_same_cuts() -> None:
    """A failure can be reproduced."""
    first, second = Served(right), Served(right)
    check(first)
    check(second)

    assert [past.offsets for past in first.pasts] == [past.offsets for past in second.pasts]
