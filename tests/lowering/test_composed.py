"""Random models: each is refused, or equals each request alone at every length. `make compose` judges many."""

import copy
import math
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from ragged import pad_with
from tools.composer import models as composer
from tools.composer.layers import Place
from tools.composer.models import LONGEST, ComposedModel, alone, compose, requests
from tools.composer.sequence_layers import Reduction
from torch import Tensor, nn

from torchserve_neuron_lstm.bucketing.execute import Tensors, execute
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, execute_chunks
from torchserve_neuron_lstm.bucketing.plan import Plan, ProgramCall
from torchserve_neuron_lstm.bucketing.shapes import Bucket, ProgramRole
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.chunks.chunking import random_chunk_plan
from torchserve_neuron_lstm.lowering.program import LoweredModel

Outcome = Literal["lowered", "refused", "wrong", "crashed"]
MODELS = int(os.environ.get("COMPOSED_MODELS", "0"))
RANGES = ((0, 2), (2, 10), (10, 20), (20, 30), (30, 40))
SEEDS = [pytest.param(seeds, marks=[pytest.mark.long] if seeds[0] else []) for seeds in RANGES]
ALL_LOWERED = 40
"""Seeds below it are lowered, each of them."""
BATCHES, ROWS, SHORT = 20, 8, 4
GARBAGE = (1e3, -1e3, float("nan"), float("inf"))
TOLERANCE = 1e-5
CHUNKED = 4
"""One in so many batches also runs in chunks of time, if the model can be cut."""
PLACE = Place(1, 4, 1, lengths=False)


@pytest.mark.ci
@pytest.mark.timeout(0 if MODELS else 900)
@pytest.mark.parametrize("seeds", [(0, MODELS)] if MODELS else SEEDS)
def test_a_random_model_is_right_at_every_length(seeds: tuple[int, int]) -> None:
    outcomes: dict[int, Outcome] = {}

    @settings(
        max_examples=seeds[1] - seeds[0],
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(composed=composer.composed_models(*seeds))
    def judge_all(composed: ComposedModel) -> None:
        outcomes[composed.seed], message = judged(composed)
        if message:
            print(f"seed {composed.seed}: {outcomes[composed.seed]}: {', '.join(composed.features)}: {message}")  # noqa: T201

    judge_all()
    counts = Counter(outcomes.values())
    print(f"{len(outcomes)} random models: {counts['lowered']} lowered, {counts['wrong']} wrong, {dict(counts)}")  # noqa: T201

    assert sorted(outcomes) == list(range(*seeds))
    assert counts["wrong"] == counts["crashed"] == 0
    assert {outcomes[seed] for seed in outcomes if seed < ALL_LOWERED} <= {"lowered"}


def judged(composed: ComposedModel) -> tuple[Outcome, str]:
    try:
        lowered = lower(composed.model, parse_config(composed.yaml, "model-config.yaml"))
    except LoweringError as error:
        return "refused", str(error).partition("\n")[0]
    except Exception as error:  # noqa: BLE001 - lowering promises LoweringError only
        return "crashed", f"lower: {type(error).__name__}: {error}"
    try:
        differences = list(differences_of(composed, lowered))
    except Exception as error:  # noqa: BLE001 - a served program must not fail
        return "crashed", f"run: {type(error).__name__}: {error}"
    if differences:
        finite = [line for line, is_finite in differences if is_finite]
        first = finite[0] if finite else differences[0][0]
        return "wrong", f"{len(differences)} answers differ, {len(finite)} with finite padding and rows: {first}"
    return "lowered", ""


@dataclass(frozen=True)
class RaggedBatch:
    """Lengths of the rows of a batch, the program's shape, and the garbage in the padding of a float input."""

    lengths: tuple[int, ...]
    bucket: Bucket
    garbage: float
    bad_row: int | None
    """Row whose request is all NaN; its answer is not compared."""


def ragged_batches(seed: int, *, any_length: bool) -> Iterator[RaggedBatch]:
    """Draw batches: first the extremes. The last one of each five is the one before, permuted."""
    choose = random.Random(seed)
    extremes = [(1,) * ROWS, (LONGEST,) * ROWS, (1,), (LONGEST,)]
    lengths = extremes[0]
    for index in range(BATCHES):
        if index < len(extremes):
            lengths = extremes[index]
        elif index % 5 == 4:
            lengths = tuple(choose.sample(lengths, len(lengths)))
        else:
            longest = SHORT if choose.random() < 0.2 else LONGEST
            more = [choose.randint(1, longest) for _ in range(choose.randint(0, ROWS - 2))]
            lengths = tuple(choose.sample([1, longest, *more], 2 + len(more)))
        yield _batch(lengths, choose, any_length=any_length)


def _batch(lengths: tuple[int, ...], choose: random.Random, *, any_length: bool) -> RaggedBatch:
    longest = max(lengths)
    padded = SHORT if longest <= SHORT else LONGEST
    if any_length:
        padded = choose.choice((padded, LONGEST, longest, longest + 3))
    bad = choose.randrange(len(lengths)) if len(lengths) > 1 and choose.random() < 0.5 else None
    return RaggedBatch(lengths, Bucket(choose.choice((len(lengths), ROWS)), padded), choose.choice(GARBAGE), bad)


class _Answers:
    """Three requests of every length, with their answers alone in eager mode."""

    def __init__(self, composed: ComposedModel) -> None:
        self.model = composed.model
        self.exact = copy.deepcopy(composed.model).double()
        lengths = list(range(1, LONGEST + 1))
        pools = [requests(self.model, lengths, 1 + composed.seed * 3 + number) for number in range(3)]
        self.requests = {length: [pool[length - 1] for pool in pools] for length in lengths}
        self.expected = {length: [alone(self.model, item) for item in self.requests[length]] for length in lengths}

    def differs(self, length: int, chosen: int, answer: Sequence[Tensor]) -> float | None:
        """Return the largest difference if it is no rounding error of single precision; a NaN counts."""
        expected = self.expected[length][chosen]
        if _equal(answer, expected):
            return None
        item = self.requests[length][chosen]
        if _equal(answer, alone(self.exact, item.double() if item.is_floating_point() else item)):
            return None
        pairs = [pair for pair in zip(answer, expected, strict=True) if pair[0].shape == pair[1].shape]
        return max((float((ours - theirs).abs().max()) for ours, theirs in pairs), default=math.nan)


def _equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(
        mine.shape == other.shape and torch.allclose(mine.double(), other.double(), TOLERANCE, TOLERANCE)
        for mine, other in zip(ours, theirs, strict=True)
    )


def differences_of(composed: ComposedModel, lowered: LoweredModel) -> Iterator[tuple[str, bool]]:
    """Run all batches; yield a line for each wrong answer, and whether padding and rows were finite."""
    answers, choose, programs = _Answers(composed), random.Random(composed.seed), _Programs(lowered)
    for index, batch in enumerate(ragged_batches(composed.seed, any_length=lowered.any_shape)):
        pairs = list(zip(batch.lengths, [choose.randrange(3) for _ in batch.lengths], strict=True))
        items = [[answers.requests[length][number].clone()] for length, number in pairs]
        if batch.bad_row is not None and items[batch.bad_row][0].is_floating_point():
            items[batch.bad_row][0].fill_(float("nan"))
        results = {"whole": programs.whole(batch, items)}
        if lowered.chunked is not None and index % CHUNKED == 0:
            results["in chunks"] = programs.chunked(batch, items, index)
        for how, answered in results.items():
            for row, (length, number) in enumerate(pairs):
                if row != batch.bad_row and (off := answers.differs(length, number, answered[row])) is not None:
                    line = f"batch {index} ({batch}), {how}: row {row} differs by {off:.1e}"
                    yield line, math.isfinite(batch.garbage) and batch.bad_row is None


class _Programs:
    def __init__(self, lowered: LoweredModel) -> None:
        self.lowered = lowered
        self.sequence = lowered.exported.module()
        parts = {} if lowered.chunked is None else lowered.chunked.parts
        self.parts = {part: program.module() for part, program in parts.items()}

    def whole(self, batch: RaggedBatch, items: list[list[Tensor]]) -> list[Tensors]:
        plan, lowered = Plan((ProgramCall(batch.bucket, tuple(range(len(items)))),)), self.lowered

        def run(bucket: Bucket, tensors: list[Tensor]) -> Sequence[Tensor]:
            with torch.no_grad():
                return [result.contiguous() for result in self.sequence(*tensors)]

        filled, takes_lengths = pad_with(batch.garbage), lowered.takes_lengths
        return execute(plan, items, batch.lengths, lowered.inputs, lowered.outputs, takes_lengths, run, filled)

    def chunked(self, batch: RaggedBatch, items: list[list[Tensor]], seed: int) -> list[Tensors]:
        assert self.lowered.chunked is not None
        signature = ChunkSignature(self.lowered.inputs, self.lowered.outputs, self.lowered.chunked.carried)
        plan = random_chunk_plan(batch.lengths, random.Random(seed))

        def run(part: ProgramRole, bucket: Bucket, tensors: list[Tensor]) -> Sequence[Tensor]:
            with torch.no_grad():
                return [result.contiguous() for result in self.parts[part](*tensors)]

        return execute_chunks(plan, items, batch.lengths, signature, run, pad_with(batch.garbage))[0]


def _mean_model() -> ComposedModel:
    torch.manual_seed(0)
    head = Reduction(random.Random(0), PLACE)
    head.variant = "mean"
    model = composer.ComposedOfSequences(None, [], [head], PLACE).eval()
    return ComposedModel(0, ("reduction",), model, composer.configuration(PLACE, ids=False))


class OverPadding(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        return (self.model(x),)


def test_padding_that_reaches_an_output_is_noticed() -> None:
    composed = _mean_model()
    sizes = {"batch": torch.export.Dim("batch"), "time": torch.export.Dim("time")}
    shapes = ({0: sizes["batch"], 1: sizes["time"]}, {0: sizes["batch"]})
    example = (torch.zeros(3, 7, PLACE.width), torch.full((3,), 7))
    with torch.no_grad():
        exported = torch.export.export(OverPadding(composed.model), example, dynamic_shapes=shapes)
    wrong = replace(lower(composed.model, parse_config(composed.yaml, "m.yaml")), exported=exported, chunked=None)

    differences = list(differences_of(composed, wrong))

    assert any(finite for _, finite in differences)


def test_batches_have_the_extremes_permutations_and_garbage() -> None:
    batches = list(ragged_batches(seed=0, any_length=True))

    assert [batch.lengths for batch in batches[:4]] == [(1,) * ROWS, (LONGEST,) * ROWS, (1,), (LONGEST,)]
    assert all(sorted(batches[place].lengths) == sorted(batches[place - 1].lengths) for place in (9, 14, 19))
    assert any(batch.bad_row is not None for batch in batches)
    assert all(max(batch.lengths) <= batch.bucket.length for batch in batches)


def test_a_seed_is_one_model_with_a_part_for_each_feature() -> None:
    torch.manual_seed(99)
    models = [compose(seed) for seed in range(30)]
    assert repr(compose(7)) == repr(models[7])
    weights = compose(7).model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in models[7].model.state_dict().items())

    for composed in models:
        kinds = {type(part) for part in composed.model.modules()}
        found = {feature for feature, kind in composer.PARTS.items() if kind in kinds}
        assert found | ({"embedding"} if composed.model.embedding else set()) == set(composed.features)
    assert {feature for composed in models for feature in composed.features} == set(composer.FEATURES)
    assert {composed.model.time for composed in models} == {0, 1}
    assert {isinstance(composed.model, composer.ComposedWithLengths) for composed in models} == {False, True}
    assert {composed.model.embedding is None for composed in models} == {False, True}
    assert {len(composed.model.heads) for composed in models} == {1, 2}
