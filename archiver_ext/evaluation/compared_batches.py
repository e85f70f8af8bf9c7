"""The batches by which engines are compared: one of each size, and their planned times."""

from __future__ import annotations

from collections.abc import Mapping

from ...bucketing.shapes import Bucket
from ...config.manifest import Manifest
from ...handlers.runtime.loader import LoadedArchive, planner_from_manifest
from ...handlers.runtime.user_code import selected_lengths
from .candidate import Candidate
from .manifest_builder import BuildInput, build_manifest, with_costs


def compared_batches(manifest: Manifest) -> list[list[int]]:
    """Return the lengths of one batch of each size of the grid."""
    return [_spread(count, manifest) for count in manifest.grid.batches]


def _spread(count: int, manifest: Manifest) -> list[int]:
    """Lengths spread evenly up to the longest; or the bucket lengths in turn, where no others are served."""
    if manifest.padding == "exact_lengths":
        lengths = manifest.grid.lengths
        return [lengths[index % len(lengths)] for index in range(count)]
    return [max(manifest.shortest, round(manifest.longest * (index + 1) / count)) for index in range(count)]


def planned_total_ms(loaded: LoadedArchive) -> float:
    """Return the planned milliseconds of a batch of every size."""
    return sum(loaded.plan(lengths).milliseconds(loaded.cost) for lengths in compared_batches(loaded.manifest))


def expected_total_ms(build: BuildInput, candidate: Candidate, costs: Mapping[Bucket, float]) -> float:
    """Plan one batch of each size by the costs of a few buckets, as if all were compiled.

    Returns milliseconds.
    """
    manifest = build_manifest(build, candidate)
    planned = with_costs(manifest, {manifest.kind: dict(costs)}, {})
    planner = planner_from_manifest(planned, selected_lengths(planned, build.tree))
    return sum(planner.plan(lengths).milliseconds(planner.cost) for lengths in compared_batches(manifest))
