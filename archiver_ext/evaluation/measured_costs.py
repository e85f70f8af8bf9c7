"""Measured milliseconds of the programs, by which batches are planned.

A program for every shape is measured in some shapes: the cost of a call is nearly linear in its timesteps, and changes
slowly with its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...bucketing.cost import CostModel
from ...bucketing.shapes import Bucket, ProgramRole, role_buckets
from ...config.manifest import CostMeasurement, Manifest, MeasuredCost
from ...handlers.runtime.loader import LoadedArchive, device_of
from ...handlers.runtime.measurement import CostKey, call_of, measure, spread
from ..progress import ProgressCallback

Costs = dict[ProgramRole, dict[Bucket, float]]
"""Milliseconds of one call of each program, by its role and bucket."""

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_CHUNK_LENGTHS = (4, 32)
"""Timesteps in which a chunk program is measured. Few for the cost of a call, many for the cost of a timestep."""


def measure_costs(
    variants: LoadedArchive, report: ProgressCallback = lambda done, total, text: None, *, padding: bool = False
) -> tuple[Costs, dict[Bucket, float], CostMeasurement]:
    """Measure every program of a loaded archive, in the buckets of `buckets_to_measure`.

    Returns what `with_costs` takes. With `padding`, also the cost of padding for an engine that stops each row at its
    own end: timesteps of data cost the same in every plan, so that plans differ only in their padding. No bucket costs
    more than a larger one.
    """
    manifest = variants.manifest
    keys = [CostKey(part, bucket) for part in variants.programs for bucket in buckets_to_measure(part, manifest)]
    if padding:
        keys += [CostKey("sequence", bucket, padded=True) for bucket in buckets_to_measure("sequence", manifest)]
    turns = measure({key: call_of(variants, key) for key in keys}, report=report)
    costs: Costs = {}
    padded: dict[Bucket, float] = {}
    for key, times in turns.items():
        (padded if key.padded else costs.setdefault(key.part, {}))[key.bucket] = min(times)
    measurement = CostMeasurement(variants.threads, round(spread(turns), 3), device_of(manifest))
    of_parts = {part: monotonic(of_part) for part, of_part in costs.items()}
    return of_parts, monotonic(padded) if padded else {}, measurement


def with_costs(
    manifest: Manifest, costs: Costs, padding: Mapping[Bucket, float], measurement: CostMeasurement | None
) -> Manifest:
    """Replace the milliseconds of the programs and of padding, and how they were measured.

    `padding` has those of calls with as much padding as possible, if they were asked for. Without a `measurement`, the
    costs are estimates.
    """
    programs = (MeasuredCost(role, bucket, ms) for role, own in costs.items() for bucket, ms in own.items())
    padded = (MeasuredCost("sequence", bucket, ms) for bucket, ms in padding.items())
    return replace(manifest, costs=tuple(programs), padding_costs=tuple(padded), measurement=measurement)


def monotonic(costs: Mapping[Bucket, float]) -> dict[Bucket, float]:
    """Return costs of which none is more than that of a larger bucket."""
    return dict(CostModel(costs).monotonic().milliseconds)


def buckets_to_measure(part: ProgramRole, manifest: Manifest) -> tuple[Bucket, ...]:
    """Choose the shapes in which a program is measured."""
    grid = manifest.grid
    if part in ("start", "head") or manifest.shapes == "grid":
        return role_buckets(part, grid)
    batches = sorted({*grid.batches, *(rows for rows in _ROWS if rows < grid.batches[-1])})
    if part == "sequence":
        # A single length would not show the cost of a call without its timesteps.
        known = grid.lengths if len(grid.lengths) > 1 else tuple(sorted({manifest.shortest, *grid.lengths}))
        lengths = tuple(sorted({known[0], known[len(known) // 2], known[-1]}))
    else:
        lengths = tuple(sorted({min(steps, manifest.longest) for steps in _CHUNK_LENGTHS}))
    return tuple(Bucket(batch, length) for batch in batches for length in lengths)
