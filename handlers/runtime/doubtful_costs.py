"""Unreliable costs, measured again by the host that loads the archive.

An archive says so in its manifest if its costs were measured while other work ran on the packaging machine, and costs
that contradict each other say it themselves. The measurement here is short: plans need the order of the costs, and
`neuron-lstm calibrate` measures them with care.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from ...backends.registry import get_backend
from ...bucketing.batch_planner import BucketPlanner
from ...config.manifest import CostMeasurement, Manifest, MeasuredCost
from .cost_samples import CostKey, Slice, contradiction_doubts, cost_ms, doubts
from .loader import LoadedArchive, device_of, planner_from_manifest
from .measurement import METERS, Call, Effort, Meters, measure
from .program_calls import full_call, padded_call

_log = logging.getLogger(__name__)

EFFORT = Effort(budget_ms=5.0, fewest=2, limit_ms=300.0)
"""A fraction of a second, however many programs there are."""


def with_reliable_costs(archive: LoadedArchive, effort: Effort = EFFORT, meters: Meters = METERS) -> LoadedArchive:
    """Return the archive, with costs measured here in place of unreliable ones; the log says so."""
    manifest = archive.manifest
    reasons, known, device = doubts_of(manifest), costs_of(manifest), device_of(manifest)
    elsewhere = _measured_elsewhere(manifest, device)
    reasons = (elsewhere, *reasons) if elsewhere is not None else reasons
    if not reasons or not known or get_backend(manifest.backend).simulation() is not None:
        return archive
    slices = measure(_calls(archive, corners_first(list(known))), effort, meters)
    taken = {key: own for key, own in slices.items() if own}
    if not {*corners(list(known))} <= taken.keys():
        _log.warning(
            "the costs of this archive are doubtful (%s), and its programs take too long to measure them while it "
            "loads: run `neuron-lstm calibrate` on this host",
            _statement(reasons[0]),
        )
        return archive
    left = doubts(taken)
    # Costs of another device say nothing about this one.
    costs = reliable_costs(known, taken, left if elsewhere is None else ())
    found = with_measured(manifest, costs, CostMeasurement(archive.threads, left, device))
    _log.log(
        logging.WARNING if left else logging.INFO,
        "the costs of this archive are doubtful (%s): %d of %d were measured here, a call takes %.2f times as long in "
        "the median%s",
        _statement(reasons[0]),
        len(taken),
        len(known),
        median(milliseconds / known[key] for key, milliseconds in costs.items()),
        "; they are still doubtful: run `neuron-lstm calibrate` while nothing else runs here" if left else "",
    )
    table = archive.planner.selected if isinstance(archive.planner, BucketPlanner) else None
    return replace(archive, manifest=found, planner=planner_from_manifest(found, table))


def _statement(doubt: str) -> str:
    """Cut a doubt to one statement, for the log; `neuron-lstm inspect` has its figures.

    >>> _statement("2 of 4 costs were measured while threads waited (9% of the time): other processes used the cores")
    '2 of 4 costs were measured while threads waited'
    """
    return re.split(r": | \(", doubt, maxsplit=1)[0]


def doubts_of(manifest: Manifest) -> tuple[str, ...]:
    """Say why an archive's costs are unreliable.

    By its manifest, else because they contradict each other.
    """
    marked = () if manifest.measurement is None else manifest.measurement.doubts
    return marked or contradiction_doubts(costs_of(manifest))


def costs_of(manifest: Manifest) -> dict[CostKey, float]:
    """Return the costs of programs and of padding by their keys."""
    return {
        **{CostKey(cost.part, cost.bucket): cost.milliseconds for cost in manifest.costs},
        **{CostKey(cost.part, cost.bucket, padded=True): cost.milliseconds for cost in manifest.padding_costs},
    }


def _measured_elsewhere(manifest: Manifest, device: str | None) -> str | None:
    """The reason if costs were not measured on this host's GPU; None if they were, or it has none."""
    known = None if manifest.measurement is None else manifest.measurement.device
    if device is None or known == device:
        return None
    return f"they were {'measured on ' + known if known else 'not measured on a GPU'}; this host has {device}"


def corners(keys: Sequence[CostKey]) -> list[CostKey]:
    """Return the buckets of each program between which all others are interpolated.

    They have the fewest or the most rows, and the fewest or the most timesteps.
    """
    groups: dict[tuple[str, bool], list[CostKey]] = {}
    for key in keys:
        groups.setdefault((key.part, key.padded), []).append(key)
    return [key for own in groups.values() for key in own if _is_corner(key, own)]


def corners_first(keys: Sequence[CostKey]) -> list[CostKey]:
    """Order the keys so that costs are interpolated wherever the time for a measurement ends.

    >>> from ...bucketing.shapes import Bucket
    >>> [str(key) for key in corners_first([CostKey("chunk", Bucket(rows, 4)) for rows in (1, 2, 8)])]
    ['chunk 1 x 4', 'chunk 8 x 4', 'chunk 2 x 4']
    """
    first = {*corners(keys)}
    return sorted(keys, key=lambda key: key not in first)


def reliable_costs(
    known: Mapping[CostKey, float], taken: Mapping[CostKey, Sequence[Slice]], left: Sequence[str]
) -> dict[CostKey, float]:
    """Choose the costs to plan by: those measured here.

    The smaller ones of both where these are doubtful (`left`) too: other work only makes calls longer.
    """
    measured = {key: cost_ms(own) for key, own in taken.items()}
    return {key: min(own, known[key]) for key, own in measured.items()} if left else measured


def with_measured(manifest: Manifest, costs: Mapping[CostKey, float], measurement: CostMeasurement) -> Manifest:
    """Replace all costs of a manifest."""
    return replace(
        manifest,
        costs=tuple(MeasuredCost(key.part, key.bucket, ms) for key, ms in costs.items() if not key.padded),
        padding_costs=tuple(MeasuredCost(key.part, key.bucket, ms) for key, ms in costs.items() if key.padded),
        measurement=measurement,
    )


def _is_corner(key: CostKey, own: Sequence[CostKey]) -> bool:
    rows, lengths = [one.bucket.batch for one in own], [one.bucket.length for one in own]
    return key.bucket.batch in (min(rows), max(rows)) and key.bucket.length in (min(lengths), max(lengths))


def _calls(archive: LoadedArchive, keys: Sequence[CostKey]) -> dict[CostKey, Call]:
    return {
        key: padded_call(archive, key.bucket) if key.padded else full_call(archive, key.part, key.bucket)
        for key in keys
    }
