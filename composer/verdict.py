"""Judgement of one composed model: lowered in this process, then compared with eager mode."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchserve_neuron_lstm.bucketing.execute import Tensors, execute
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, execute_chunks
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, ProgramRole
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.chunks.chunk_check import random_chunk_plan
from torchserve_neuron_lstm.lowering.program import LoweredModel
from torchserve_neuron_lstm.lowering.request_lowering import lower_request

from .compose import compose, requests
from .model import LONGEST, ComposedModel, ComposedWithLengths, alone
from .ragged_batches import RaggedBatch, bucket_batches, pad_with, ragged_batches

Outcome = Literal["accepted", "bucket lengths only", "refused", "wrong", "crashed"]
BATCHES = 20
_TOLERANCE = 1e-5
_CHUNKED = 4
"""One in so many batches also runs in chunks of time, if the model can be cut."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of one seed."""

    seed: int
    features: tuple[str, ...]
    lengths: bool
    """Whether the model takes lengths."""
    outcome: Outcome
    message: str
    """Refusal, first difference, or exception; empty for an accepted model."""
    because: str
    """Refusal of the trace of one request, if the model is not accepted."""
    way: str
    """Reason for the padding mode, and whether chunks of time were run."""
    seconds: float


def judge(seed: int, batches: int = BATCHES) -> Verdict:
    """Compose, lower and compare the model of a seed. No exception leaves: it is a crash."""
    began = time.monotonic()
    composed = compose(seed)
    outcome, message, because, way = _judged(composed, batches)
    takes_lengths = isinstance(composed.model, ComposedWithLengths)
    spent = round(time.monotonic() - began, 2)
    return Verdict(seed, composed.features, takes_lengths, outcome, message, because, way, spent)


def _judged(composed: ComposedModel, batches: int) -> tuple[Outcome, str, str, str]:
    config = parse_config(composed.yaml, "model-config.yaml")
    try:
        lowered = lower(composed.model, config)
    except LoweringError as error:
        return "refused", str(error), str(error.__cause__ or ""), ""
    except Exception as error:  # noqa: BLE001 - lowering promises LoweringError only
        return "crashed", f"lower: {type(error).__name__}: {error}", "", ""
    exact = lowered.padding == "exact_lengths"
    way = f"{lowered.padding_reason}{'' if lowered.chunked is None else '; in chunks of time'}"
    because = _refusal_of_one_request(composed, config) if exact else ""
    try:
        differences = list(differences_of(composed, lowered, batches))
    except Exception as error:  # noqa: BLE001 - a served program must not fail
        return "crashed", f"run: {type(error).__name__}: {error}", because, way
    if differences:
        finite = [line for line, is_finite in differences if is_finite]
        first = finite[0] if finite else differences[0][0]
        count = f"{len(differences)} answers differ, {len(finite)} of them with finite padding and rows"
        return "wrong", f"{count}, such as {first}", because, way
    return ("bucket lengths only" if exact else "accepted"), "", because, way


def _refusal_of_one_request(composed: ComposedModel, config: ServingConfig) -> str:
    try:
        lower_request(composed.model, config)
    except LoweringError as error:
        return str(error)
    return "the trace of one request is lowered, and is not used"


class _Answers:
    """Requests of every length, with their answers alone in eager mode."""

    def __init__(self, composed: ComposedModel) -> None:
        self.model = composed.model
        self.exact = copy.deepcopy(composed.model).double()
        lengths = list(range(1, LONGEST + 1))
        pools = [requests(self.model, lengths, 1 + composed.seed * 3 + copied) for copied in range(3)]
        self.requests = {length: [pool[length - 1] for pool in pools] for length in lengths}
        self.expected = {length: [alone(self.model, item) for item in self.requests[length]] for length in lengths}

    def differs(self, length: int, chosen: int, answer: Sequence[Tensor]) -> float | None:
        """Return the largest difference if it is no rounding error of single precision; a NaN counts."""
        own = self.expected[length][chosen]
        if _equal(answer, own):
            return None
        item = self.requests[length][chosen]
        exact = alone(self.exact, item.double() if item.is_floating_point() else item)
        if _equal(answer, exact):
            return None
        pairs = zip(answer, own, strict=True)
        return max(float((ours - theirs).abs().max()) for ours, theirs in pairs if ours.shape == theirs.shape)


def _equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(
        own.shape == other.shape and torch.allclose(own.double(), other.double(), _TOLERANCE, _TOLERANCE)
        for own, other in zip(ours, theirs, strict=True)
    )


def differences_of(composed: ComposedModel, lowered: LoweredModel, batches: int) -> Iterator[tuple[str, bool]]:
    """Run all batches; yield a line for each wrong answer, and whether padding and rows were finite."""
    answers = _Answers(composed)
    drawn = (
        bucket_batches(batches, composed.seed)
        if lowered.padding == "exact_lengths"
        else ragged_batches(batches, composed.seed, any_length=lowered.any_shape)
    )
    run = _Programs(lowered)
    choose = random.Random(composed.seed)
    for index, batch in enumerate(drawn):
        chosen = [choose.randrange(3) for _ in batch.lengths]
        items = [[answers.requests[length][one].clone()] for length, one in zip(batch.lengths, chosen, strict=True)]
        bad_row = batch.bad_row
        if bad_row is not None and items[bad_row][0].is_floating_point():
            items[bad_row][0].fill_(float("nan"))
        results = {"whole": run.whole(batch, items)}
        if lowered.chunked is not None and index % _CHUNKED == 0:
            results["in chunks"] = run.chunked(batch, items, index)
        for how, answered in results.items():
            for row, (length, one) in enumerate(zip(batch.lengths, chosen, strict=True)):
                if row != bad_row and (off := answers.differs(length, one, answered[row])) is not None:
                    line = f"batch {index} ({batch}), {how}: row {row} differs by {off:.1e}"
                    yield line, math.isfinite(batch.garbage) and bad_row is None


class _Programs:
    """Programs of a lowered model, run as an engine runs them."""

    def __init__(self, lowered: LoweredModel) -> None:
        self.lowered = lowered
        self.sequence = lowered.exported.module()
        parts = {} if lowered.chunked is None else lowered.chunked.parts
        self.parts = {part: program.module() for part, program in parts.items()}

    def whole(self, batch: RaggedBatch, items: list[list[Tensor]]) -> list[Tensors]:
        """Run a batch in one program call."""
        plan = Plan((ProgramCall(batch.bucket, tuple(range(len(items)))),))
        lowered = self.lowered

        def run(bucket: Bucket, tensors: list[Tensor]) -> Sequence[Tensor]:
            with torch.no_grad():
                return [result.contiguous() for result in self.sequence(*tensors)]

        pad = pad_with(batch.garbage, len(items))
        takes_lengths = lowered.takes_lengths
        return execute(plan, items, batch.lengths, lowered.inputs, lowered.outputs, takes_lengths, run, pad)

    def chunked(self, batch: RaggedBatch, items: list[list[Tensor]], seed: int) -> list[Tensors]:
        """Run a batch in random chunks of time."""
        assert self.lowered.chunked is not None
        signature = ChunkSignature(self.lowered.inputs, self.lowered.outputs, self.lowered.chunked.carried)
        plan = random_chunk_plan(batch.lengths, random.Random(seed))

        def run(part: ProgramRole, bucket: Bucket, tensors: list[Tensor]) -> Sequence[Tensor]:
            with torch.no_grad():
                return [result.contiguous() for result in self.parts[part](*tensors)]

        return execute_chunks(plan, items, batch.lengths, signature, run, pad_with(batch.garbage, len(items)))
