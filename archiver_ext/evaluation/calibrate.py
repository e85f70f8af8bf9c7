"""Milliseconds of the programs, as the planner will reckon with them.

A program for every shape is measured in some of them: the cost of a call is close to a line in its timesteps, and moves
slowly with its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from ...bucketing.execute_chunks import ChunkedExecution
from ...bucketing.padding import lengths_tensor, torch_dtype
from ...bucketing.plan import single_bucket_plan
from ...bucketing.shapes import Bucket, ProgramRole, TensorSpec, role_buckets
from ...config.manifest import Manifest
from ...handlers.runtime.loader import LoadedArchive
from ..progress import ProgressCallback

KeyT = TypeVar("KeyT")
Costs = dict[ProgramRole, dict[Bucket, float]]
"""Milliseconds of one call of each part in some buckets."""
Call = Callable[[], object]

_WARM_UPS = 2
_FEWEST = 3
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_PIECES = (4, 32)
"""Timesteps in which a program for pieces is measured: few, for what a call costs, and many, for what a step costs."""


def measure_costs(variants: LoadedArchive, report: ProgressCallback = lambda done, total, text: None) -> Costs:
    """Every part of a loaded archive, in the buckets that `buckets_to_measure` names."""
    costs: Costs = {}
    for done, part in enumerate(variants.programs, 1):
        calls = {bucket: _call(variants, part, bucket) for bucket in buckets_to_measure(part, variants.manifest)}
        costs[part] = measure(calls)
        report(done, len(variants.programs), part)
    return costs


def measure_padding(variants: LoadedArchive) -> dict[Bucket, float]:
    """What padding costs an engine that stops each row at its own end: one row goes on to the end, the others do not.

    Timesteps of data cost the same wherever they are computed, and plans only choose where padding is.
    """
    facts = variants.manifest
    return measure(
        {bucket: _run(variants, "sequence", bucket, padded=True) for bucket in buckets_to_measure("sequence", facts)}
    )


def buckets_to_measure(part: ProgramRole, manifest: Manifest) -> tuple[Bucket, ...]:
    """The shapes in which a part is measured."""
    grid = manifest.grid
    if part in ("start", "head") or manifest.shapes == "grid":
        return role_buckets(part, grid)
    batches = sorted({*grid.batches, *(rows for rows in _ROWS if rows < grid.batches[-1])})
    if part == "sequence":
        # A single length would not show what a call costs without its timesteps.
        lengths = grid.lengths if len(grid.lengths) > 1 else tuple(sorted({1, *grid.lengths}))
    else:
        lengths = tuple(sorted({min(steps, manifest.longest) for steps in _PIECES}))
    return tuple(Bucket(batch, length) for batch in batches for length in lengths)


def _call(variants: LoadedArchive, part: ProgramRole, bucket: Bucket) -> Call:
    """One call with every row at the bucket's full length; of a piece with all that comes with handing its state on."""
    return _advance(variants, bucket) if part == "chunk" else _run(variants, part, bucket)


def _advance(variants: LoadedArchive, bucket: Bucket) -> Call:
    lengths = [2 * bucket.length] * bucket.batch
    plan = single_bucket_plan(bucket, lengths, "chunk")
    item = [zero_item(spec, lengths[0]) for spec in variants.manifest.inputs]
    signature, chain = variants.chunk_signature, variants.chain
    batch = ChunkedExecution(plan, [item] * bucket.batch, lengths, signature, variants.run, chain=chain)
    return partial(batch.run_chunks, plan.runs[:1])


def _run(variants: LoadedArchive, part: ProgramRole, bucket: Bucket, *, padded: bool = False) -> Call:
    manifest = variants.manifest
    specs = [spec for spec in manifest.inputs if part == "sequence" or spec.time_dim is None]
    tensors = [_blank(spec, bucket) for spec in specs]
    if manifest.takes_lengths:
        tensors.append(lengths_tensor([bucket.length, *[1 if padded else bucket.length] * (bucket.batch - 1)], bucket))
    if part == "head":
        tensors += [_blank(value.spec, bucket) for value in manifest.carried]
    return partial(variants.run, part, bucket, tensors)


def _blank(spec: TensorSpec, bucket: Bucket) -> torch.Tensor:
    return torch.zeros(spec.sizes(*bucket), dtype=torch_dtype(spec))


def zero_item(spec: TensorSpec, length: int) -> torch.Tensor:
    """Zeros for one request of so many timesteps."""
    return _blank(replace(spec, shape=spec.item_shape), Bucket(1, length))


def measure(
    calls: Mapping[KeyT, Call], budget_ms: float = 60.0, clock: Callable[[], float] = time.perf_counter
) -> dict[KeyT, float]:
    """The least milliseconds of each call, given about `budget_ms` each and at least three runs.

    The least, because nothing but other work on the machine makes a run slower, and plans compare calls with each
    other: medians mislead them where one call had the quiet moments and another had not.

    The calls take turns, so that a slow moment of the machine falls on all of them and not on one.
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
