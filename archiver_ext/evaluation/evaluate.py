"""Evaluation of one engine: in the tree of the archive, through the loader of the serving code.

Engines are compared by the planned times of one batch of each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...backends.compilation.job import CompileResult
from ...bucketing.shapes import role_buckets
from ...config.manifest import Manifest
from ...config.manifest_writer import write_manifest
from ...handlers.runtime.loader import LoadedArchive, load_archive, planner_from_manifest
from ...handlers.runtime.user_code import load_bucket_selector
from ..progress import ProgressCallback
from .candidate import Candidate, CandidateResult
from .input_ranges import with_value_ranges
from .manifest_builder import BuildInput, build_manifest, with_errors
from .measured_costs import Costs, measure_costs, with_costs
from .verification_cases import Cases
from .verify_programs import kinds_beyond_tolerance, verify_programs


@dataclass(frozen=True)
class EvaluatedEngine:
    """A candidate that agrees with eager mode and was measured, for the comparison with others."""

    result: CandidateResult
    """Its `total_ms` is planned, until the engines are compared."""
    archive: LoadedArchive
    """Its programs, which stay loaded after their files have moved."""
    torch_threads: int
    """Threads of torch that loading has set: engines that start threads leave it one."""


def evaluate_engine(
    build: BuildInput, candidate: Candidate, compiled: Sequence[CompileResult], cases: Cases, report: ProgressCallback
) -> EvaluatedEngine:
    """Load every program from the tree as a host would, verify it against eager mode, and measure it.

    Raises `ToleranceExceeded`: an output differs from eager mode by more than the tolerance.
    Raises `LoadError`: the engine cannot load here what it compiled here.
    """
    manifest = build_manifest(build, candidate)
    write_manifest(manifest, build.tree)
    loaded = with_value_ranges(load_archive(build.tree, build.threads), manifest.inputs)
    torch_threads = torch.get_num_threads()
    verified = verify_programs(loaded, cases, report)
    simulation = candidate.engine.simulation()
    if simulation is None:
        # Padding too where plans may choose how much there is, and it costs less than data.
        padding = candidate.engine.ragged and (manifest.kind, manifest.shapes) == ("sequence", "any")
        measured = with_costs(manifest, *measure_costs(loaded, padding=padding))
    else:
        measured = with_costs(manifest, _estimated_costs(manifest), {}, None)
    measured = with_errors(measured, verified)
    table = load_bucket_selector(measured.kernel, measured.grid.lengths, build.tree)
    planned = replace(loaded, planner=planner_from_manifest(measured, table))
    total_ms = sum(planned.plan(lengths).milliseconds(planned.planner.cost) for lengths in compared_batches(manifest))
    beyond = kinds_beyond_tolerance(loaded, cases)
    result = CandidateResult(candidate, tuple(compiled), verified, measured, total_ms, simulation, beyond)
    return EvaluatedEngine(result, planned, torch_threads)


def _estimated_costs(manifest: Manifest) -> Costs:
    """Costs to plan by where measured times of a simulation say nothing about the device.

    The compiler's estimates; if it has none at all, the number of timesteps, padding included.
    """
    has_estimates = any(variant.estimate_us for variant in manifest.variants)
    costs: Costs = {}
    for variant in manifest.variants:
        for bucket in role_buckets(variant.part, manifest.grid) if variant.bucket is None else [variant.bucket]:
            steps = float(bucket.batch * bucket.length)
            us = (variant.estimate_us or 1.0) if has_estimates else steps  # not zero where others have an estimate
            costs.setdefault(variant.part, {})[bucket] = us / 1000
    return costs


def compared_batches(manifest: Manifest) -> list[list[int]]:
    """Return the lengths of one batch of each size of the grid: spread evenly up to the longest."""
    counts = manifest.grid.batches
    shortest, longest = manifest.shortest, manifest.longest
    return [[max(shortest, round(longest * (row + 1) / count)) for row in range(count)] for count in counts]
