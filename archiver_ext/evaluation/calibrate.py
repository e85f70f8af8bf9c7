"""Measured milliseconds of the programs, by which batches are planned.

A program for every shape is measured in some shapes: the cost of a call is nearly linear in its timesteps, and changes
slowly with its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from ...bucketing.execute_chunks import ChunkedExecution
from ...bucketing.padding import lengths_tensor, zeros
from ...bucketing.plan import single_bucket_plan
from ...bucketing.shapes import Bucket, ProgramRole, role_buckets
from ...config.manifest import Manifest
from ...handlers.runtime.loader import LoadedArchive
from ..progress import ProgressCallback

KeyT = TypeVar("KeyT")
Costs = dict[ProgramRole, dict[Bucket, float]]
"""Milliseconds of one call of each program, by its role and bucket."""
Call = Callable[[], object]

_WARM_UPS = 1
_FEWEST = 3
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_PIECES = (4, 32)
"""Timesteps in which a chunk program is measured: few for the cost of a call, many for the cost of
a timestep.
"""


def measure_costs(variants: LoadedArchive, report: ProgressCallback = lambda done, total, text: None) -> Costs:
    """Measure every program of a loaded archive, in the buckets of `buckets_to_measure`."""
    costs: Costs = {}
    for done, part in enumerate(variants.programs, 1):
        calls = {bucket: full_call(variants, part, bucket) for bucket in buckets_to_measure(part, variants.manifest)}
        costs[part] = measure(calls)
        report(done, len(variants.programs), part)
    return costs


def measure_padding(variants: LoadedArchive) -> dict[Bucket, float]:
    """Measure the cost of padding for an engine that stops each row at its own end.

    One row has all timesteps of the bucket, the others have one.

    Timesteps of data cost the same in every plan; plans differ only in their padding.
    """
    facts = variants.manifest
    return measure(
        {bucket: _run(variants, "sequence", bucket, padded=True) for bucket in buckets_to_measure("sequence", facts)}
    )


def buckets_to_measure(part: ProgramRole, manifest: Manifest) -> tuple[Bucket, ...]:
    """Choose the shapes in which a program is measured."""
    grid = manifest.grid
    if part in ("start", "head") or manifest.shapes == "grid":
        return role_buckets(part, grid)
    batches = sorted({*grid.batches, *(rows for rows in _ROWS if rows < grid.batches[-1])})
    if part == "sequence":
        # A single length would not show the cost of a call without its timesteps.
        known = grid.lengths if len(grid.lengths) > 1 else tuple(sorted({1, *grid.lengths}))
        lengths = tuple(sorted({known[0], known[len(known) // 2], known[-1]}))
    else:
        lengths = tuple(sorted({min(steps, manifest.longest) for steps in _PIECES}))
    return tuple(Bucket(batch, length) for batch in batches for length in lengths)


def full_call(variants: LoadedArchive, part: ProgramRole, bucket: Bucket) -> Call:
    """Return one call with every row at the bucket's full length; a chunk hands on its carry."""
    return _advance(variants, bucket) if part == "chunk" else _run(variants, part, bucket)


def _advance(variants: LoadedArchive, bucket: Bucket) -> Call:
    lengths = [2 * bucket.length] * bucket.batch
    plan = single_bucket_plan(bucket, lengths, "chunk")
    item = [zeros(spec, lengths[0]) for spec in variants.manifest.inputs]
    signature, chain = variants.chunk_signature, variants.chain
    batch = ChunkedExecution(plan, [item] * bucket.batch, lengths, signature, variants.run, chain=chain)
    return partial(batch.run_chunks, plan.runs[:1])


def _run(variants: LoadedArchive, part: ProgramRole, bucket: Bucket, *, padded: bool = False) -> Call:
    manifest = variants.manifest
    specs = [spec for spec in manifest.inputs if part == "sequence" or spec.time_dim is None]
    tensors = [zeros(spec, bucket.length, bucket.batch) for spec in specs]
    if manifest.takes_lengths:
        tensors.append(lengths_tensor([bucket.length, *[1 if padded else bucket.length] * (bucket.batch - 1)], bucket))
    if part == "head":
        tensors += [zeros(value.spec, bucket.length, bucket.batch) for value in manifest.carried]
    return partial(variants.run, part, bucket, tensors)


def measure(
    calls: Mapping[KeyT, Call], budget_ms: float = 30.0, clock: Callable[[], float] = time.perf_counter
) -> dict[KeyT, float]:
    """Measure the minimum milliseconds of each call, in about `budget_ms` and at least three runs each.

    The minimum, because only other work on the machine makes a run slower, and plans compare calls with each other:
    medians would be biased if the machine was idle for one call and busy for another.

    The calls are interleaved, so that a slow moment of the machine affects all of them and not one.
    """
    for call in calls.values():
        for _ in range(_WARM_UPS):
            call()
    samples: dict[KeyT, list[float]] = {key: [] for key in calls}
    while pending := [key for key, taken in samples.items() if len(taken) < _FEWEST or sum(taken) < budget_ms]:
        for key in pending:
            samples[key].append(_milliseconds(calls[key], clock))
    return {key: min(taken) for key, taken in samples.items()}


def _milliseconds(call: Call, clock: Callable[[], float]) -> float:
    started = clock()
    call()
    return 1000 * (clock() - started)
