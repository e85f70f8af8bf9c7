"""Evaluation of a compiled engine: in the archive's own tree, through the loader of the serving code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ...backends.compile_job import CompileResult
from ...backends.interface import Backend, Ragged, precision_of, simulation_of
from ...bucketing.cost import CostModel
from ...bucketing.padding import zeros
from ...bucketing.shapes import Bucket, BucketGrid, ProgramRole, role_buckets
from ...config.manifest import Manifest, write_manifest
from ...handlers.runtime.loader import LoadedArchive, load_archive, planner_from_manifest
from ...handlers.runtime.measurement import Call
from ...handlers.runtime.program_calls import full_call
from ...handlers.runtime.user_code import selected_lengths
from ..errors import PackagingError
from ..progress import ProgressCallback
from ..torch_threads import on_threads
from .alternating import measure_alternating
from .calibrate import Costs, MeasuredCosts, measure_costs
from .manifest_builder import BuildInput, Estimates, build_manifest, estimates, with_costs
from .selection import Candidate, CandidateResult
from .value_ranges import with_value_ranges
from .verification_cases import VerificationCase
from .verify import (
    VerificationResult,
    merge_worst,
    verify_bucket,
    verify_planned,
)
from .verify_streaming import verify_streaming

_UNESTIMATED_US = 1.0
"""Planning cost of a program without an estimate, where others have one: not zero."""


@dataclass(frozen=True)
class LoadedEngine:
    """An engine with its programs loaded, which stay so after their files have moved."""

    archive: LoadedArchive
    torch_threads: int
    """Threads of torch that loading has set: engines with threads of their own leave it one."""


@dataclass(frozen=True)
class EvaluatedEngine:
    """A candidate that agrees with eager mode and was measured, for the comparison with others."""

    result: CandidateResult
    """Its `total_ms` is planned, until `measure_together` compares the engines."""
    loaded: LoadedEngine


@dataclass(frozen=True)
class EngineTimes:
    """Measured times of several engines, in the same alternating rounds."""

    totals: Mapping[str, float]
    """Milliseconds for one batch of each size, by the engine."""
    calls: Mapping[Bucket, float]
    """Milliseconds of one full call in each bucket of an engine that is compiled for these alone."""
    undisturbed: bool
    """False: other work on the machine may have decided."""

    @property
    def fastest(self) -> str:
        """The engine with the least total."""
        return min(self.totals, key=self.totals.__getitem__)


class ToleranceExceeded(PackagingError):
    """An engine differs from the model in eager mode by more than the tolerance."""

    def __init__(self, backend: str, results: Sequence[VerificationResult], tolerance: tuple[float, float]) -> None:
        self.backend = backend
        failed = [result for result in results if not result.passed]
        lines = "\n".join(_table_row(result) for result in results)
        super().__init__(
            f"{backend} differs from the model in eager mode by more than the tolerance "
            f"(atol {tolerance[0]:g}, rtol {tolerance[1]:g}) in {len(failed)} of {len(results)} buckets:\n"
            f"  bucket      result  max error  error / tolerance  largest in\n{lines}{_explanation(results)}"
        )


def _explanation(results: Sequence[VerificationResult]) -> str:
    """Explanation of the failed buckets, if they differ from the others by the batch size alone."""
    alone = [result for result in results if result.bucket.batch == 1]
    if alone and all(result.passed for result in alone):
        return (
            "\nRequests are right alone, but not in a batch: one request may change the output of another. Compute "
            "each row of the batch by itself in forward(), or serve batch: [1]"
        )
    return ""


def _table_row(result: VerificationResult) -> str:
    bucket = f"{result.bucket.batch} x {result.bucket.length}"
    outcome = "passed" if result.passed else "failed"
    return f"  {bucket:<10}  {outcome}  {result.max_error:9.2e}  {result.worst_ratio:17.3g}  {result.where}"


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
    estimated, simulation = estimates(build, candidate), simulation_of(candidate.device_engine)
    found = _measured(loaded, candidate.engine) if simulation is None else None
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


def measure_together(
    engines: Sequence[EvaluatedEngine], buckets: Mapping[Bucket, LoadedEngine] | None = None
) -> EngineTimes:
    """Measure one batch of each size, and one full call in each of `buckets`, in alternating rounds."""
    calls: dict[tuple[str, int] | Bucket, Call] = {
        (engine.result.backend, len(lengths)): _batch_call(engine.loaded, lengths)
        for engine in engines
        for lengths in _batches(engine.loaded.archive.manifest)
    }
    for bucket, loaded in (buckets or {}).items():
        call = full_call(loaded.archive, loaded.archive.manifest.kind, bucket)
        calls[bucket] = on_threads(loaded.torch_threads, call)
    totals: dict[str, float] = {}
    full: dict[Bucket, float] = {}
    measured = measure_alternating(calls)
    for key, milliseconds in measured.milliseconds.items():
        if isinstance(key, Bucket):
            full[key] = milliseconds
        else:
            totals[key[0]] = totals.get(key[0], 0.0) + milliseconds
    return EngineTimes(totals, full, measured.undisturbed)


def with_total(result: CandidateResult, totals: Mapping[str, float]) -> CandidateResult:
    """Replace the planned total by the measured one, unless the device is emulated."""
    return result if result.simulation is not None else replace(result, total_ms=totals[result.backend])


def load_bucket(
    build: BuildInput, candidate: Candidate, bucket: Bucket, cases: Sequence[VerificationCase]
) -> LoadedEngine:
    """Load the programs of one bucket from the tree, and verify them in it.

    Raises:
        ToleranceExceeded: an output differs from eager mode by more than the tolerance.
        LoadError: the engine cannot load here what it compiled here.
    """
    manifest = build_manifest(replace(build, config=build.config.with_one_bucket(bucket)), candidate)
    write_manifest(manifest, build.tree)
    loaded = with_value_ranges(load_archive(build.tree, build.threads), manifest.inputs)
    torch_threads = torch.get_num_threads()
    result = verify_bucket(loaded, bucket, manifest, cases, manifest.tolerance)
    if not result.passed:
        raise ToleranceExceeded(manifest.backend, [result], manifest.tolerance)
    return LoadedEngine(loaded, torch_threads)


def expected_total_ms(build: BuildInput, candidate: Candidate, costs: Mapping[Bucket, float]) -> float:
    """Plan one batch of each size by the costs of a few buckets, as if all were compiled.

    Returns milliseconds.
    """
    manifest = build_manifest(build, candidate)
    planned = with_costs(manifest, {manifest.kind: dict(costs)}, {})
    planner = planner_from_manifest(planned, selected_lengths(planned, build.tree))
    return sum(planner.plan(lengths).milliseconds(planner.cost) for lengths in _batches(manifest))


def _measured(loaded: LoadedArchive, engine: Backend) -> MeasuredCosts:
    return measure_costs(loaded, padding=_measures_padding(engine, loaded.manifest))


def _measures_padding(engine: Backend, manifest: Manifest) -> bool:
    """Whether plans are free to choose how much padding there is, and it costs less than data."""
    return isinstance(engine, Ragged) and engine.ragged and (manifest.kind, manifest.shapes) == ("sequence", "any")


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


def verify_programs(
    loaded: LoadedArchive, cases: Sequence[VerificationCase], report: ProgressCallback
) -> dict[Bucket, VerificationResult]:
    """Verify loaded programs against eager mode in each bucket of the grid.

    Batches in planned shapes, and sessions, count for the largest bucket.

    Raises:
        ToleranceExceeded: an output differs from eager mode by more than the tolerance.
    """
    manifest = loaded.manifest
    buckets, tolerance = manifest.grid.buckets, manifest.tolerance
    results: dict[Bucket, VerificationResult] = {}
    for done, bucket in enumerate(buckets, 1):
        results[bucket] = verify_bucket(loaded, bucket, manifest, cases, tolerance)
        report(done, len(buckets), f"{manifest.backend} {bucket.batch} x {bucket.length}")
    largest, rows = buckets[-1], buckets[-1].batch
    results[largest] = merge_worst(results[largest], verify_planned(loaded, manifest, cases, rows, tolerance))
    if manifest.streaming is not None:
        results[largest] = merge_worst(results[largest], verify_streaming(loaded, manifest, cases, rows, tolerance))
    if not all(result.passed for result in results.values()):
        raise ToleranceExceeded(manifest.backend, list(results.values()), tolerance)
    return results


def _planned_total_ms(loaded: LoadedArchive) -> float:
    """Planned milliseconds of a batch of every size."""
    return sum(loaded.plan(lengths).milliseconds(loaded.cost) for lengths in _batches(loaded.manifest))


def _batch_call(loaded: LoadedEngine, lengths: Sequence[int]) -> Call:
    """One batch as it is planned; its measured time differs from the sum of its plan."""
    archive = loaded.archive
    requests = [[zeros(spec, length) for spec in archive.manifest.inputs] for length in lengths]
    call = partial(archive.run_plan, archive.plan(lengths), requests, lengths)
    return on_threads(loaded.torch_threads, call)


def _batches(manifest: Manifest) -> list[list[int]]:
    return [_spread(count, manifest) for count in manifest.grid.batches]


def _spread(count: int, manifest: Manifest) -> list[int]:
    """Lengths spread evenly up to the longest; or the bucket lengths in turn, where no others are served."""
    if manifest.padding == "exact_lengths":
        lengths = manifest.grid.lengths
        return [lengths[index % len(lengths)] for index in range(count)]
    return [max(manifest.shortest, round(manifest.longest * (index + 1) / count)) for index in range(count)]
