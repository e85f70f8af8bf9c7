"""Evaluation of one engine: in the tree of the archive, through the loader of the serving code.

Engines are compared by the planned times of one batch of each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...backends.compilation.job import CompileResult
from ...backends.interface import Backend, precision_of
from ...bucketing.cost import CostModel
from ...bucketing.shapes import BucketGrid, ProgramRole, role_buckets
from ...config.manifest import Manifest
from ...config.manifest_writer import write_manifest
from ...handlers.runtime.loader import LoadedArchive, load_archive, planner_from_manifest
from ...handlers.runtime.user_code import selected_lengths
from ..progress import ProgressCallback
from .candidate import Candidate, CandidateResult
from .input_ranges import with_value_ranges
from .manifest_builder import BuildInput, Estimates, build_manifest, estimates, with_costs
from .measured_costs import Costs, MeasuredCosts, measure_costs
from .verification_cases import VerificationCase
from .verify_programs import verify_programs

_UNESTIMATED_US = 1.0
"""Planning cost of a program without an estimate, where others have one: not zero."""


@dataclass(frozen=True)
class LoadedEngine:
    """An engine with its programs loaded, which stay so after their files have moved."""

    archive: LoadedArchive
    torch_threads: int
    """Threads of torch that loading has set: engines that start threads leave it one."""


@dataclass(frozen=True)
class EvaluatedEngine:
    """A candidate that agrees with eager mode and was measured, for the comparison with others."""

    result: CandidateResult
    """Its `total_ms` is planned, until the engines are compared."""
    loaded: LoadedEngine


def evaluate_engine(
    build: BuildInput,
    candidate: Candidate,
    compiled: Sequence[CompileResult],
    cases: Sequence[VerificationCase],
    report: ProgressCallback,
) -> EvaluatedEngine:
    """Load every program from the tree as a host would, verify it against eager mode, and measure it.

    Raises:
        ToleranceExceeded: an output differs from eager mode by more than the tolerance.
        LoadError: the engine cannot load here what it compiled here.
    """
    manifest = build_manifest(build, candidate)
    write_manifest(manifest, build.tree)
    loaded = with_value_ranges(load_archive(build.tree, build.threads), manifest.inputs)
    torch_threads = torch.get_num_threads()
    verified = verify_programs(loaded, cases, report)
    estimated, simulation = estimates(build, candidate), candidate.device_engine.simulation()
    found = _measure(loaded, candidate.engine) if simulation is None else None
    costs = _costs_from_estimates(estimated, build.config.grid) if found is None else found.costs
    padding = {} if found is None else found.padding
    measured = with_costs(manifest, costs, padding)
    planned = replace(loaded, planner=planner_from_manifest(measured, selected_lengths(measured, build.tree)))
    main: ProgramRole = manifest.kind
    cost = CostModel(costs[main])
    result = CandidateResult(
        candidate=candidate,
        precision=precision_of(candidate.engine, build.config.precision),
        compiled=tuple(compiled),
        verified=verified,
        costs=costs,
        milliseconds={bucket: cost.of(bucket) for bucket in build.config.grid.buckets},
        total_ms=_planned_total_ms(planned),
        estimates={bucket: us for (role, bucket), us in estimated.items() if role == main and bucket and us},
        padding=padding,
        measurement=None if found is None else found.measurement,
        simulation=simulation,
    )
    return EvaluatedEngine(result, LoadedEngine(planned, torch_threads))


def _measure(loaded: LoadedArchive, engine: Backend) -> MeasuredCosts:
    return measure_costs(loaded, padding=_measures_padding(engine, loaded.manifest))


def _measures_padding(engine: Backend, manifest: Manifest) -> bool:
    """Whether plans are free to choose how much padding there is, and it costs less than data."""
    return engine.ragged and (manifest.kind, manifest.shapes) == ("sequence", "any")


def _costs_from_estimates(estimated: Estimates, grid: BucketGrid) -> Costs:
    """Costs to plan by where measured times of a simulation say nothing about the device.

    The compiler's estimates; if it has none at all, the number of timesteps, padding included.
    """
    has_estimates = any(estimated.values())
    costs: Costs = {}
    for (role, compiled_for), us in estimated.items():
        for bucket in role_buckets(role, grid) if compiled_for is None else [compiled_for]:
            own = (us or _UNESTIMATED_US) if has_estimates else float(bucket.batch * bucket.length)
            costs.setdefault(role, {})[bucket] = own / 1000
    return costs


def compared_batches(manifest: Manifest) -> list[list[int]]:
    """Return the lengths of one batch of each size of the grid."""
    return [_spread(count, manifest) for count in manifest.grid.batches]


def _spread(count: int, manifest: Manifest) -> list[int]:
    """Lengths spread evenly up to the longest; or the bucket lengths in turn, where no others are served."""
    if manifest.padding == "exact_lengths":
        lengths = manifest.grid.lengths
        return [lengths[index % len(lengths)] for index in range(count)]
    return [max(manifest.shortest, round(manifest.longest * (index + 1) / count)) for index in range(count)]


def _planned_total_ms(loaded: LoadedArchive) -> float:
    """Return the planned milliseconds of a batch of every size."""
    return sum(loaded.plan(lengths).milliseconds(loaded.cost) for lengths in compared_batches(loaded.manifest))
