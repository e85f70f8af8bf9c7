"""The batches by which engines are compared: one of each size, and their planned times."""

from __future__ import annotations

from ...config.manifest import Manifest
from ...handlers.runtime.loader import LoadedArchive


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
