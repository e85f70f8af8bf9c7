"""Trying a compiled engine where it will serve: in the archive's own tree, through the loader of the serving half."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

from ...backends import registry
from ...backends.interface import Backend, Run
from ...bucketing.grid import Bucket
from ...config.manifest import Manifest, Variant, digest_files, write_manifest
from ...config.schema import ServingConfig
from ...handlers.variants import load_variants
from ..archive import tree as trees
from ..errors import PackagingError
from ..lowering.program import Program
from ..processes import PACKAGE
from ..progress import Report
from .calibrate import Call, measure
from .candidates import Trial
from .compile import Compiled, Job
from .verify import Batch, Case, Checked, to_tensors, verify

CONSTANTS = f"{trees.PROGRAMS}/constants.pt"


class Missed(PackagingError):
    """An engine that disagrees with eager by more than the tolerance."""

    def __init__(self, backend: str, checked: Sequence[Checked], tolerance: tuple[float, float]) -> None:
        self.backend = backend
        misses = [found for found in checked if not found.verdict.is_passing()]
        lines = "\n".join(_miss_line(found) for found in checked)
        super().__init__(
            f"{backend} differs from the model in eager mode by more than the tolerance "
            f"(atol {tolerance[0]:g}, rtol {tolerance[1]:g}) in {len(misses)} of {len(checked)} buckets:\n"
            f"  bucket      verdict  max error  times allowed  worst in\n{lines}"
        )


def _miss_line(found: Checked) -> str:
    bucket = f"{found.bucket.batch} x {found.bucket.length}"
    return f"  {bucket:<10}  {found.verdict.value:<7}  {found.max_error:9.2e}  {found.worst_ratio:13.3g}  {found.where}"


@dataclass(frozen=True)
class Subject:
    """What is packaged, before an engine is chosen."""

    tree: Path
    weights: str | None
    """The serialized file's name in the tree."""
    config: ServingConfig
    program: Program
    threads: int

    @property
    def tolerance(self) -> tuple[float, float]:
        """(atol, rtol)."""
        return self.config.tolerance.atol, self.config.tolerance.rtol


def variant_directory(backend: Backend, bucket: Bucket | None) -> str:
    """Where a variant lies in the archive, e.g. `programs/inductor/b4_t128`."""
    return f"{trees.PROGRAMS}/{backend.name}/{'any' if bucket is None else f'b{bucket.batch}_t{bucket.length}'}"


def jobs_for(engines: Sequence[Backend], buckets: Sequence[Bucket], compiled: Path) -> list[Job]:
    """What to compile, below the directory `compiled`: every bucket, or once for an engine that takes every shape."""
    wanted = [(engine, bucket) for engine in engines for bucket in ([None] if engine.polymorphic else buckets)]
    return [Job(engine.name, bucket, compiled / variant_directory(engine, bucket)) for engine, bucket in wanted]


def write_constants(subject: Subject) -> None:
    """Write the tensors that lowering lifted out of the model's code, if there are any."""
    if subject.program.constants:
        path = subject.tree / CONSTANTS
        path.parent.mkdir(exist_ok=True)
        torch.save(dict(subject.program.constants), path)


def attempt(
    subject: Subject, engine: Backend, compiled: Sequence[Compiled], cases: Sequence[Case], report: Report
) -> Trial:
    """Load every variant from the tree as a host would, hold it against eager, and measure it.

    Raises:
        Missed: a variant differs from eager by more than the tolerance.
        CannotLoad: the engine cannot load here what it compiled here.
    """
    buckets = subject.config.grid.buckets
    write_tree_manifest(subject, engine, None)
    variants = load_variants(subject.tree, subject.threads)
    runs = {bucket: partial(variants.run, bucket) for bucket in buckets}
    checked: dict[Bucket, Checked] = {}
    for done, bucket in enumerate(buckets, 1):
        checked[bucket] = verify(runs[bucket], bucket, subject.program, cases, subject.tolerance)
        report(done, len(buckets), f"{engine.name} {bucket.batch} x {bucket.length}")
    if not all(found.verdict.is_passing() for found in checked.values()):
        raise Missed(engine.name, list(checked.values()), subject.tolerance)
    return Trial(engine.name, tuple(compiled), checked, measure(_calls(subject, runs, cases)))


def _calls(subject: Subject, runs: Mapping[Bucket, Run], cases: Sequence[Case]) -> dict[Bucket, Call]:
    """One call of each variant with every row at the bucket's full length: what the planner's costs mean."""
    rng = torch.Generator().manual_seed(0)
    calls: dict[Bucket, Call] = {}
    for bucket, run in runs.items():
        longest = next(case for case in cases if case.request.length == bucket.length)
        full = Batch((longest,) * bucket.batch, "pad_value")
        calls[bucket] = partial(run, to_tensors(full, bucket, subject.program, rng))
    return calls


def install(subject: Subject, engine: Backend, compiled: Path) -> None:
    """Move an engine's programs from below `compiled` into the tree, and the serving half with them."""
    target = subject.tree / trees.PROGRAMS / engine.name
    target.parent.mkdir(exist_ok=True)
    (compiled / trees.PROGRAMS / engine.name).rename(target)
    trees.add_serving_half(subject.tree, trees.package_directory(), registry.files_of_others(engine.name))


def remove(subject: Subject, engine: Backend, compiled: Path) -> None:
    """Undo `install`."""
    (subject.tree / trees.PROGRAMS / engine.name).rename(compiled / trees.PROGRAMS / engine.name)
    shutil.rmtree(subject.tree / PACKAGE)


def write_tree_manifest(subject: Subject, engine: Backend, trial: Trial | None) -> None:
    """Write variants.json. Without a trial the measurements are zero: enough to load by."""
    manifest = manifest_of(subject, engine, trial)
    write_manifest(manifest, subject.tree)


def manifest_of(subject: Subject, engine: Backend, trial: Trial | None) -> Manifest:
    """Everything the serving half needs to know."""
    config, program = subject.config, subject.program
    return Manifest(
        backend=engine.name,
        requires=tuple((need.distribution, need.module, need.version) for need in engine.requirements()),
        host=dict(engine.host()),
        inputs=program.inputs,
        takes_lengths=program.takes_lengths,
        outputs=program.outputs,
        padding=program.padding,
        padding_reason=program.padding_reason,
        overflow=config.overflow,
        grid=config.grid,
        variants=tuple(_variant(engine, bucket, trial) for bucket in config.grid.buckets),
        weights=subject.weights,
        constants=CONSTANTS if program.constants else None,
        codec=config.codec,
        threads=config.threads,
        precision=config.precision,
        tolerance=subject.tolerance,
        files=digest_files(subject.tree),
        produced_by=versions(),
    )


def _variant(engine: Backend, bucket: Bucket, trial: Trial | None) -> Variant:
    return Variant(
        bucket=bucket,
        directory=variant_directory(engine, None if engine.polymorphic else bucket),
        milliseconds=trial.milliseconds[bucket] if trial else 0.0,
        max_error=trial.checked[bucket].max_error if trial else 0.0,
    )


def versions() -> dict[str, str]:
    """What made the archive."""
    names = ("torchserve-neuron-lstm", "torch", "torch-model-archiver")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
