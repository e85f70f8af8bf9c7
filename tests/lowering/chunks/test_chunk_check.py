"""Chunked execution on every engine equals eager mode on each request alone, for long sequences too."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from chunked_models import any_chunked_plan, assert_plan_answers
from model_cases import CASES, Case, cases, lowered
from ragged import alone, ragged

from torchserve_neuron_lstm.backends.interface import LoadedProgram
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.plan import Plan, single_bucket_plan
from torchserve_neuron_lstm.bucketing.shapes import Bucket, ProgramRole

GARBAGE = (0.0, -1e4, 1e30)
LENGTHS = ([1], [40], [23, 1, 9, 9, 2], [3, 61, 17], [5] * 4)
# Those that hand on something of every kind: states given, learned, computed and of two layers; sums, extremes of
# every dtype, last steps; time first; a projection; buffers, tied weights and constants.
ANY_SHAPE_CASES = (
    "Extremes", "FixedStatistics", "GruGivenState", "LastStepByIndex", "LengthsAreAnAnswer", "LstmGivenState",
    "MeanByCountedMask", "MaximumOfMasked", "ProjectedGivenState", "ResidualStack", "SpeakerAtEveryStep",
    "StateOfSpeaker", "TiedWeights",
)  # fmt: skip


class Served:
    """A test model in eager mode, and its chunk programs on an engine."""

    def __init__(self, case: Case, backend: str, buckets: Mapping[ProgramRole, Bucket | None], folder: Path) -> None:
        made, engine = lowered(case), get_backend(backend)
        self.model, self.config, self.program = made.model, made.config, made.program
        weights = {**self.model.state_dict(), **self.program.constants}
        self.calls: dict[ProgramRole, LoadedProgram] = {}
        for part, exported in self.program.parts.items():
            (folder / part).mkdir()
            engine.compile(exported, buckets[part], folder / part)
            self.calls[part] = engine.load(folder / part, weights, engine.host(), 1)

    def check(self, lengths: Sequence[int], seed: int, plan: Callable[[], Plan]) -> None:
        items = ragged(self.program.inputs, lengths, seed).items
        expected = [alone(self.model, self.config, item, length) for item, length in zip(items, lengths, strict=True)]
        for garbage in GARBAGE:
            assert_plan_answers(self.program, self.calls, plan(), items, lengths, expected, garbage)


@pytest.mark.few(2)
@pytest.mark.parametrize("backend", ["native", pytest.param("onnxruntime", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", cases(ANY_SHAPE_CASES))
def test_one_program_serves_any_chunk_plan(case: Case, backend: str, tmp_path: Path) -> None:
    parts: dict[ProgramRole, Bucket | None] = {"start": None, "chunk": None, "head": None}
    served = Served(case, backend, parts, tmp_path)
    choose = random.Random(0)
    for seed, lengths in enumerate(LENGTHS):
        served.check(lengths, seed, partial(any_chunked_plan, lengths, choose))


@pytest.mark.ci
@pytest.mark.timeout(400)  # three programs for a C++ compiler, on a machine that may have others to do
@pytest.mark.parametrize("backend", ["onnxruntime", pytest.param("inductor", marks=pytest.mark.long)])
def test_one_bucket_serves_any_length(backend: str, tmp_path: Path) -> None:
    parts: dict[ProgramRole, Bucket | None] = {"start": Bucket(2, 1), "chunk": Bucket(2, 4), "head": Bucket(2, 1)}
    served = Served(next(case for case in CASES if case.name == "StateOfSpeaker"), backend, parts, tmp_path)
    for seed, lengths in enumerate(([1], [4], [5, 1], [4, 4], [40], [17, 33], [8, 6])):
        served.check(lengths, seed, partial(single_bucket_plan, Bucket(2, 4), lengths, "chunk"))
