"""Holding a model in pieces of time against the same model in one piece, on ragged batches cut at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from ..bucketing.execute_chunks import ChunkSignature, execute_chunks
from ..bucketing.padding import pad
from ..bucketing.plan import Plan, ProgramCall
from ..bucketing.shapes import Bucket, ProgramRole, TensorSpec
from .carry_analysis import NotChunkable
from .program import ChunkPrograms

_LENGTHS = (9, 7, 7, 4, 2, 1)
_TRIALS = 6
_TOLERANCE = 1e-4  # far above rounding, far below what a wrong cut does
_ANY_ID = 8
"""Below this, ids for an input whose vocabulary is not known."""

Requests = list[list[torch.Tensor]]


def check_chunked_equivalence(
    exported: torch.export.ExportedProgram,
    pieces: ChunkPrograms,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> None:
    """Run the same requests alone in one piece, and together in pieces.

    Raises:
        NotChunkable: an answer differs, or a piece cannot be run.
    """
    requests = _requests(inputs)
    whole = exported.module()
    parts = {part: program.module() for part, program in pieces.parts.items()}
    layout = ChunkSignature(inputs, outputs, pieces.carried)

    def run(part: ProgramRole, bucket: Bucket, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        answers: Sequence[torch.Tensor] = parts[part](*tensors)
        return [answer.contiguous() for answer in answers]

    with torch.no_grad():
        try:
            expected = [_alone(whole, item, length, inputs) for item, length in zip(requests, _LENGTHS, strict=True)]
        except Exception as error:
            raise NotChunkable(f"it cannot be run on sequences of every length: {error}") from error
        for seed in range(_TRIALS):
            plan = random_chunk_plan(_LENGTHS, random.Random(seed))  # noqa: S311 - nothing here is secret
            try:
                answers = execute_chunks(plan, requests, _LENGTHS, layout, run)
            except Exception as error:
                raise NotChunkable(f"its pieces cannot be run: {error}") from error
            _compare(answers, expected, outputs)


def random_chunk_plan(lengths: Sequence[int], rng: random.Random) -> Plan:
    """Any way of cutting the time of a batch: all rows that are still alive go on together.

    >>> len(random_chunk_plan([3, 5], random.Random(0)).heads[0].rows)
    2
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    runs = []
    start = 0
    while alive := tuple(row for row in order if lengths[row] > start):
        step = rng.randint(1, lengths[order[0]] - start)
        runs.append(ProgramCall(Bucket(len(alive), step), alive, start))
        start += step
    return Plan(tuple(runs), (ProgramCall(Bucket(len(order), 1), tuple(order)),))


def _requests(inputs: Sequence[TensorSpec]) -> Requests:
    rng = torch.Generator().manual_seed(0)
    return [[_random(spec, length, rng) for spec in inputs] for length in _LENGTHS]


def _random(spec: TensorSpec, length: int, rng: torch.Generator) -> torch.Tensor:
    shape = [length if size == "time" else int(size) for size in spec.item_shape]
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=rng).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else spec.vocabulary or _ANY_ID, shape, generator=rng).to(dtype)


def _alone(
    whole: torch.nn.Module, item: Sequence[torch.Tensor], length: int, inputs: Sequence[TensorSpec]
) -> list[torch.Tensor]:
    batch = [pad([tensor], spec, Bucket(1, length)) for tensor, spec in zip(item, inputs, strict=True)]
    return list(whole(*batch, torch.tensor([length])))


def _compare(
    answers: Sequence[Sequence[torch.Tensor]], expected: Sequence[Sequence[torch.Tensor]], outputs: Sequence[TensorSpec]
) -> None:
    for answer, right in zip(answers, expected, strict=True):
        for ours, theirs, spec in zip(answer, right, outputs, strict=True):
            alone = theirs if spec.batch_dim is None else theirs.select(spec.batch_dim, 0)
            if not torch.allclose(ours.double(), alone.double(), _TOLERANCE, _TOLERANCE, equal_nan=True):
                raise NotChunkable(f"in pieces its output {spec.name} is another than in one piece")
