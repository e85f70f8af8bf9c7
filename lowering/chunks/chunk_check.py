"""Equivalence check of chunked execution: ragged batches, cut at random, against whole sequences."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch.export import ExportedProgram

from ...bucketing.execute_chunks import ChunkSignature, execute_chunks
from ...bucketing.padding import pad
from ...bucketing.plan import Plan, ProgramCall
from ...bucketing.shapes import Bucket, ProgramRole, TensorSpec
from ..exporter.random_values import is_close, random_requests
from ..program import ChunkPrograms
from .carry_analysis import NotChunkable

_LENGTHS = (9, 7, 7, 4, 2, 1)
_TRIALS = 6


def check_chunked_equivalence(
    exported: ExportedProgram, chunked: ChunkPrograms, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> None:
    """Run the same requests alone as whole sequences, and together in chunks.

    Raises `NotChunkable`: an output differs, or a program fails.
    """
    requests = random_requests(inputs, _LENGTHS, torch.Generator().manual_seed(0))
    whole = exported.module()
    parts = {part: program.module() for part, program in chunked.parts.items()}
    layout = ChunkSignature(inputs, outputs, chunked.carried)

    def run(part: ProgramRole, bucket: Bucket, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        results: Sequence[torch.Tensor] = parts[part](*tensors)
        return [result.contiguous() for result in results]

    with torch.no_grad():
        try:
            expected = [_alone(whole, item, length, inputs) for item, length in zip(requests, _LENGTHS, strict=True)]
        except Exception as error:
            raise NotChunkable(f"the model cannot be run on sequences of every length: {error}") from error
        for seed in range(_TRIALS):
            plan = random_chunk_plan(_LENGTHS, random.Random(seed))  # noqa: S311 - nothing here is secret
            try:
                results = execute_chunks(plan, requests, _LENGTHS, layout, run)
            except Exception as error:
                raise NotChunkable(f"the chunk programs cannot be run: {error}") from error
            _compare(results, expected, outputs)


def random_chunk_plan(lengths: Sequence[int], rng: random.Random) -> Plan:
    """Cut the time of a batch into chunks at random; each chunk runs all active rows.

    >>> len(random_chunk_plan([3, 5], random.Random(0)).heads[0].rows)
    2
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    calls = []
    start = 0
    while active := tuple(row for row in order if lengths[row] > start):
        step = rng.randint(1, lengths[order[0]] - start)
        calls.append(ProgramCall(Bucket(len(active), step), active, start))
        start += step
    return Plan(tuple(calls), (ProgramCall(Bucket(len(order), 1), tuple(order)),))


def _alone(
    whole: torch.nn.Module, item: Sequence[torch.Tensor], length: int, inputs: Sequence[TensorSpec]
) -> list[torch.Tensor]:
    batch = [pad([tensor], spec, Bucket(1, length)) for tensor, spec in zip(item, inputs, strict=True)]
    return list(whole(*batch, torch.tensor([length])))


def _compare(
    results: Sequence[Sequence[torch.Tensor]], expected: Sequence[Sequence[torch.Tensor]], outputs: Sequence[TensorSpec]
) -> None:
    for chunked, whole in zip(results, expected, strict=True):
        for ours, theirs, spec in zip(chunked, whole, outputs, strict=True):
            alone = theirs if spec.batch_dim is None else theirs.select(spec.batch_dim, 0)
            if not is_close(ours, alone):
                raise NotChunkable(f"chunked execution changes output {spec.name}")
