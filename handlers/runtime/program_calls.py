"""Calls of an archive's programs, to measure them: arbitrary inputs in full buckets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...bucketing.execute_chunks import ChunkedExecution
from ...bucketing.padding import zeros
from ...bucketing.plan import single_bucket_plan
from ...bucketing.shapes import Bucket, ProgramRole
from .example_inputs import example_inputs
from .loader import LoadedArchive


def full_call(archive: LoadedArchive, part: ProgramRole, bucket: Bucket) -> Callable[[], object]:
    """Return one call with every row at the bucket's full length; a chunk hands on its carry."""
    return _advance(archive, bucket) if part == "chunk" else _run(archive, part, bucket)


def padded_call(archive: LoadedArchive, bucket: Bucket) -> Callable[[], object]:
    """Return one call with as much padding as possible: one row has all timesteps, the others have one.

    For an engine that stops each row at its own end: it shows what padding costs.
    """
    return _run(archive, "sequence", bucket, padded=True)


def _advance(archive: LoadedArchive, bucket: Bucket) -> Callable[[], object]:
    lengths = [2 * bucket.length] * bucket.batch
    plan = single_bucket_plan(bucket, lengths, "chunk")
    item = [zeros(spec, lengths[0]) for spec in archive.manifest.inputs]
    signature, chain = archive.chunk_signature, archive.chain
    batch = ChunkedExecution(plan, [item] * bucket.batch, lengths, signature, archive.run, chain=chain)
    return partial(batch.run_chunks, plan.calls[:1])


def _run(archive: LoadedArchive, part: ProgramRole, bucket: Bucket, *, padded: bool = False) -> Callable[[], object]:
    return partial(archive.run, part, bucket, example_inputs(archive.manifest, part, bucket, padded=padded))
