"""Verification of sessions: errors between two chunks are found, and right programs pass for any cuts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from streaming_archive import streaming_manifest

from torchserve_neuron_lstm.archiver_ext.evaluation.reference import ReferenceOutputs, ReferenceRequest
from torchserve_neuron_lstm.archiver_ext.evaluation.verification_cases import VerificationCase
from torchserve_neuron_lstm.archiver_ext.evaluation.verify import VerificationResult
from torchserve_neuron_lstm.archiver_ext.evaluation.verify_programs import verify_streaming
from torchserve_neuron_lstm.bucketing.execute import Pad
from torchserve_neuron_lstm.bucketing.execute_chunks import ResumedState
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.shapes import ProgramRole
from torchserve_neuron_lstm.config.manifest import Manifest

from . import summing_model
from .summing_model import Tensors, right_chunk

ROWS = 4
PROGRAM = summing_model.program(chunked=summing_model.SPLIT)


def cases() -> list[VerificationCase]:
    rng = torch.Generator().manual_seed(0)
    found = []
    for length in (1, 2, 3, 7, 12, summing_model.LONGEST):
        x, ids = torch.randn(length, 2, generator=rng), torch.randint(5, (), generator=rng)
        request = ReferenceRequest(length, (x, ids))
        found.append(VerificationCase(request, summing_model.eager(request)))
    return found


@dataclass
class Served(summing_model.InChunks):
    manifest: Manifest = field(default_factory=lambda: streaming_manifest(None, carried=summing_model.CARRIED))
    pasts: list[ResumedState] = field(default_factory=list)
    swapped: bool = False
    """Whether the sessions of a batch are interchanged."""

    def run_plan(
        self, plan: Plan, requests: Any, lengths: Sequence[int], pad: Pad = pad, resumed: ResumedState | None = None
    ) -> tuple[list[ReferenceOutputs], tuple[torch.Tensor, ...]]:
        assert resumed is not None
        self.pasts.append(resumed)
        answers, carried = super().run_plan(plan, requests, lengths, pad, resumed)
        return answers, tuple(value.flip(0) for value in carried) if self.swapped else carried


def fading(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    answers = right_chunk(part, tensors)
    return answers if part == "head" else [answers[0], answers[1] * 0.999]


def heedless(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """Programs whose state includes values beyond the end of a chunk."""
    if part == "head":
        return right_chunk(part, tensors)
    x, ids, lengths, so_far = tensors
    beyond = torch.arange(x.shape[0])[:, None] >= lengths
    answers = right_chunk(part, [x, ids, lengths, so_far])
    return [answers[0], answers[1] + 0.5 * beyond.sum(0)[:, None]]


def counting_chunks(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    """A program that takes the length of the last chunk for the length of the sequence.

    The error shows only at a head with more than one long chunk, or with a single chunk.
    """
    answers = right_chunk(part, tensors)
    return [answers[0] + (tensors[1] == summing_model.LONGEST)] if part == "head" else answers


def not_a_number(part: ProgramRole, tensors: Tensors) -> list[torch.Tensor]:
    answers = right_chunk(part, tensors)
    return answers if part == "head" else [answers[0], torch.full_like(answers[1], torch.nan)]


def check(model: Served, rows: int = ROWS, seed: int = 0) -> VerificationResult:
    return verify_streaming(model, PROGRAM, cases(), rows, summing_model.TOLERANCE, seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [1, ROWS])
def test_a_right_program_passes(rows: int, seed: int) -> None:
    found = check(Served(right_chunk), rows, seed)

    assert found.passed
    assert found.max_error < 1e-5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("wrong", [summing_model.forgetful, fading, heedless, counting_chunks, not_a_number])
def test_a_wrong_carry_is_found(wrong: summing_model.ChunkRun, seed: int) -> None:
    found = check(Served(wrong), seed=seed)

    assert not found.passed
    assert found.worst_ratio > 1
    assert " of a session in chunks of [" in found.where


@pytest.mark.parametrize("seed", range(5))
def test_states_that_go_to_another_session_are_caught(seed: int) -> None:
    assert not check(Served(right_chunk, swapped=True), seed=seed).passed


def test_a_batch_holds_sessions_that_begin_and_sessions_that_go_on() -> None:
    model = Served(right_chunk)
    check(model)

    assert any(not past.rows for past in model.pasts)
    assert any(past.rows and 0 not in past.rows for past in model.pasts)
    assert any(len(set(past.offsets)) > 1 for past in model.pasts)


def test_the_same_seed_tries_the_same_cuts() -> None:
    first, second = Served(right_chunk), Served(right_chunk)
    check(first)
    check(second)

    assert [past.offsets for past in first.pasts] == [past.offsets for past in second.pasts]
