"""Trying a compiled engine where it will serve: in the archive's own tree, through the loader of the serving half."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

from ...backends import registry
from ...backends.partitioning.backend import PartitionedBackend
from ...backends.interface import DEFAULTS, Backend, CompileSettings, Estimating, Ragged, Requirement, Simulating, precision_of
from ...bucketing.cost import CostModel
from ...bucketing.shapes import Bucket, BucketGrid
from ...bucketing.shapes import ProgramRole
from ...config.manifest import ErrorTolerance, RequiredPackage, MeasuredError, MeasuredCost, Manifest, Variant, digest_files, write_manifest
from ...config.schema import ServingConfig
from ...handlers.runtime.user_code import selected_lengths
from ...handlers.runtime.loader import LoadedArchive, load_archive, planner_from_manifest
from ..archive import layout
from ..errors import PackagingError
from ...lowering.program import LoweredModel
from ...lowering.streaming import state_compatibility_id
from ...backends.subprocesses import PACKAGE
from ..progress import ProgressCallback
from .calibrate import Call, Costs, zero_item, measure, measure_costs, measure_padding
from .selection import CandidateResult, has_dynamic_shape
from ...backends.compile_pool import CompileResult, CompileJob
from .verify import VerificationCase, VerificationResult, verify_bucket, verify_planned, merge_worst
from .verify_streaming import verify_streaming

_BESIDE_US = 1.0
"""Of a program with nothing on the device, where nothing is measured: no more than that it is not free."""


class ToleranceExceeded(PackagingError):
    """An engine that disagrees with eager by more than the tolerance."""

    def __init__(self, backend: str, checked: Sequence[VerificationResult], tolerance: tuple[float, float]) -> None:
        self.backend = backend
        misses = [found for found in checked if not found.verdict.is_passing()]
        lines = "\n".join(_miss_line(found) for found in checked)
        super().__init__(
            f"{backend} differs from the model in eager mode by more than the tolerance "
            f"(atol {tolerance[0]:g}, rtol {tolerance[1]:g}) in {len(misses)} of {len(checked)} buckets:\n"
            f"  bucket      verdict  max error  times allowed  worst in\n{lines}"
        )


def _miss_line(found: VerificationResult) -> str:
    bucket = f"{found.bucket.batch} x {found.bucket.length}"
    return f"  {bucket:<10}  {found.verdict.value:<7}  {found.max_error:9.2e}  {found.worst_ratio:13.3g}  {found.where}"


@dataclass(frozen=True)
class BuildInput:
    """What is packaged, before an engine is chosen."""

    tree: Path
    weights: str | None
    """The serialized file's name in the tree."""
    config: ServingConfig
    program: LoweredModel
    threads: int

    @property
    def tolerance(self) -> tuple[float, float]:
        """(atol, rtol)."""
        return self.config.tolerance.atol, self.config.tolerance.rtol


def compile_jobs(
    engines: Sequence[Backend],
    programs: Mapping[ProgramRole, Path],
    grid: BucketGrid,
    compiled: Path,
    settings: CompileSettings = DEFAULTS,
) -> list[CompileJob]:
    """What to compile, from files of torch.export.save to folders below `compiled`.

    An engine that cannot compute in the precision of `settings` computes in what it prefers; each program has a
    folder of its own below their `workdir`.
    """
    return [
        CompileJob(
            engine.name,
            part,
            bucket,
            programs[part],
            compiled / layout.variant_directory(engine.name, part, bucket),
            _own(settings, engine, layout.variant_directory(engine.name, part, bucket)),
            engine.config if isinstance(engine, PartitionedBackend) else None,
        )
        for engine in engines
        for part, bucket in layout.programs_to_compile(engine, tuple(programs), grid)
    ]


def _own(settings: CompileSettings, engine: Backend, directory: str) -> CompileSettings:
    workdir = None if settings.workdir is None else settings.workdir / directory
    return replace(settings, precision=precision_of(engine, settings.precision), workdir=workdir)


def write_constants(subject: BuildInput) -> None:
    """Write the tensors that lowering lifted out of the model's code, if there are any."""
    if subject.program.constants:
        path = subject.tree / layout.CONSTANTS
        path.parent.mkdir(exist_ok=True)
        torch.save(dict(subject.program.constants), path)


def evaluate_engine(
    subject: BuildInput, engine: Backend, compiled: Sequence[CompileResult], cases: Sequence[VerificationCase], report: ProgressCallback
) -> CandidateResult:
    """Load every program from the tree as a host would, hold it against eager, and measure it.

    Raises:
        Missed: an answer differs from eager by more than the tolerance.
        CannotLoad: the engine cannot load here what it compiled here.
    """
    write_tree_manifest(subject, engine, None)
    variants = load_archive(subject.tree, subject.threads)
    checked = verify_archive(variants, cases, report)
    estimates, simulation = _estimates(subject, engine), _simulation(engine)
    costs = measure_costs(variants) if simulation is None else _as_costs(estimates)
    padding = measure_padding(variants) if _is_ragged(engine, variants.manifest) else {}
    measured = build_manifest(subject, engine, None, costs, padding)
    planned = replace(variants, planner=planner_from_manifest(measured, selected_lengths(measured, subject.tree)))
    main: ProgramRole = "sequence" if subject.program.chunked is None else "chunk"
    cost = CostModel(costs[main])
    return CandidateResult(
        backend=engine.name,
        precision=precision_of(engine, subject.config.precision),
        compiled=tuple(compiled),
        verified=checked,
        costs=costs,
        milliseconds={bucket: cost.of(bucket) for bucket in subject.config.grid.buckets},
        total_ms=_answered_ms(planned) if simulation is None else _planned_ms(planned),
        estimates={bucket: us for (part, bucket), us in estimates.items() if part == main and bucket and us},
        padding=padding,
        simulation=simulation,
    )


def _is_ragged(engine: Backend, manifest: Manifest) -> bool:
    """Whether padding is measured by itself: where plans are free to choose how much of it there is."""
    return isinstance(engine, Ragged) and engine.ragged and (manifest.kind, manifest.shapes) == ("sequence", "any")


def _estimates(subject: BuildInput, engine: Backend) -> dict[tuple[ProgramRole, Bucket | None], float | None]:
    """Microseconds of every program on the engine's device, by its compiler's count."""
    inner = engine.engine if isinstance(engine, PartitionedBackend) else engine
    return {
        (part, bucket): inner.estimate_us(subject.tree / layout.variant_directory(engine.name, part, bucket))
        if isinstance(inner, Estimating)
        else None
        for part, bucket in layout.programs_to_compile(engine, tuple(subject.program.parts), subject.config.grid)
    }


def _simulation(engine: Backend) -> str | None:
    inner = engine.engine if isinstance(engine, PartitionedBackend) else engine
    return inner.simulation() if isinstance(inner, Simulating) else None


def _as_costs(estimates: Mapping[tuple[ProgramRole, Bucket | None], float | None]) -> Costs:
    """What to plan by where a simulation's own time says nothing of the device's.

    The compiler's count; where it counts nothing at all, as much as there are timesteps, padding included.
    """
    counts = any(estimates.values())
    costs: Costs = {}
    for (part, bucket), us in estimates.items():
        if bucket is not None:
            own = (us or _BESIDE_US) if counts else float(bucket.batch * bucket.length)
            costs.setdefault(part, {})[bucket] = own / 1000
    return costs


def verify_archive(variants: LoadedArchive, cases: Sequence[VerificationCase], report: ProgressCallback) -> dict[Bucket, VerificationResult]:
    """Hold loaded programs against eager: in each bucket of the grid; and with the largest, as they will be planned.

    Raises:
        Missed: an answer differs from eager by more than the tolerance.
    """
    facts = variants.manifest
    buckets = facts.grid.buckets
    checked: dict[Bucket, VerificationResult] = {}
    for done, bucket in enumerate(buckets, 1):
        checked[bucket] = verify_bucket(variants, bucket, facts, cases, facts.tolerance)
        report(done, len(buckets), f"{facts.backend} {bucket.batch} x {bucket.length}")
    largest, rows = buckets[-1], buckets[-1].batch
    checked[largest] = merge_worst(checked[largest], verify_planned(variants, facts, cases, rows, facts.tolerance))
    if facts.streaming is not None:
        checked[largest] = merge_worst(checked[largest], verify_streaming(variants, facts, cases, rows, facts.tolerance))
    if not all(found.verdict.is_passing() for found in checked.values()):
        raise ToleranceExceeded(facts.backend, list(checked.values()), facts.tolerance)
    return checked


def _planned_ms(variants: LoadedArchive) -> float:
    """Batches of every size, by the costs that plans are made by."""
    return sum(variants.plan(own).milliseconds(variants.cost) for own in _batches(variants.manifest))


def _answered_ms(variants: LoadedArchive) -> float:
    """The same batches, answered: measured costs add up to more, or less, than what plans make of them."""
    calls: dict[int, Call] = {}
    for lengths in _batches(variants.manifest):
        requests = [[zero_item(spec, length) for spec in variants.manifest.inputs] for length in lengths]
        calls[len(lengths)] = partial(variants.answer, variants.plan(lengths), requests, lengths)
    return sum(measure(calls).values())


def _batches(manifest: Manifest) -> list[list[int]]:
    return [_spread(count, manifest) for count in manifest.grid.batches]


def _spread(count: int, manifest: Manifest) -> list[int]:
    """Lengths as far apart as can be: what a grid and an engine make of requests of every length."""
    if manifest.padding == "exact_lengths":
        edges = manifest.grid.lengths
        return [edges[index % len(edges)] for index in range(count)]
    return [max(1, round(manifest.longest * (index + 1) / count)) for index in range(count)]


def install_engine(subject: BuildInput, engine: Backend, compiled: Path) -> None:
    """Move an engine's programs from below `compiled` into the tree, and the serving half with them."""
    target = subject.tree / layout.PROGRAMS / engine.name
    target.parent.mkdir(exist_ok=True)
    (compiled / layout.PROGRAMS / engine.name).rename(target)
    layout.copy_serving_files(subject.tree, layout.package_directory(), registry.travelling_files(engine.name))


def remove_engine(subject: BuildInput, engine: Backend, compiled: Path) -> None:
    """Undo `install_engine`."""
    (subject.tree / layout.PROGRAMS / engine.name).rename(compiled / layout.PROGRAMS / engine.name)
    shutil.rmtree(subject.tree / PACKAGE)


def write_tree_manifest(subject: BuildInput, engine: Backend, trial: CandidateResult | None) -> None:
    """Write variants.json. Without a trial there are no measurements: enough to load by."""
    costs, padding = ({}, {}) if trial is None else (trial.costs, trial.padding)
    write_manifest(build_manifest(subject, engine, trial, costs, padding), subject.tree)


def build_manifest(
    subject: BuildInput, engine: Backend, trial: CandidateResult | None, costs: Costs, padding: Mapping[Bucket, float]
) -> Manifest:
    """Everything the serving half needs to know."""
    config, program, files = subject.config, subject.program, digest_files(subject.tree)
    split = program.chunked
    return Manifest(
        backend=engine.name,
        requires=tuple(
            RequiredPackage(need.distribution, need.module, need.version) for need in _requirements(engine, config)
        ),
        host=dict(engine.host()),
        inputs=program.inputs,
        takes_lengths=program.takes_lengths,
        outputs=program.outputs,
        padding=program.padding,
        padding_reason=program.padding_reason,
        overflow=config.overflow,
        kind="sequence" if split is None else "chunk",
        kind_reason=program.chunking_reason,
        carried=() if split is None else split.carried,
        grid=config.grid,
        shapes="any" if has_dynamic_shape(engine, program) else "grid",
        longest=config.longest,
        variants=tuple(
            Variant(part, bucket, layout.variant_directory(engine.name, part, bucket), us)
            for (part, bucket), us in _estimates(subject, engine).items()
        ),
        checks=() if trial is None else tuple(MeasuredError(b, found.max_error) for b, found in trial.verified.items()),
        costs=tuple(MeasuredCost(part, bucket, ms) for part, found in costs.items() for bucket, ms in found.items()),
        padding_costs=tuple(MeasuredCost("sequence", bucket, ms) for bucket, ms in padding.items()),
        weights=subject.weights,
        constants=layout.CONSTANTS if program.constants else None,
        codec=config.codec,
        kernel=config.buckets.kernel,
        placement=config.placement,
        threads=config.threads,
        streaming=None if config.streaming is None else config.streaming.settings(_state_id(subject, files)),
        precision=precision_of(engine, config.precision),
        tolerance=ErrorTolerance(*subject.tolerance),
        files=files,
        produced_by=producer_versions(),
    )


def _state_id(subject: BuildInput, files: Mapping[str, str]) -> str:
    return state_compatibility_id(subject.program, [] if subject.weights is None else [files[subject.weights]])


def _requirements(engine: Backend, config: ServingConfig) -> Iterator[Requirement]:
    """What the host needs: for the engine, and to reach a store of sessions."""
    yield from engine.requirements()
    if config.streaming is not None and config.streaming.store == "redis":
        yield Requirement("redis", "redis", metadata.version("redis"))


def producer_versions() -> dict[str, str]:
    """What made the archive."""
    names = ("torchserve-neuron-lstm", "torch", "torch-model-archiver")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
