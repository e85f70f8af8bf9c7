"""The manifest of an archive: the one place where its facts are collected."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from ...backends.interface import Requirement, precision_of
from ...backends.program_source.read import FILE_NAME
from ...backends.versions import release, torch_version
from ...bucketing.shapes import Bucket
from ...config.manifest import (
    AcceptedRange,
    ErrorTolerance,
    Manifest,
    MeasuredError,
    RequiredPackage,
    Variant,
    sha256_of,
)
from ...config.own_model import Shadow, ShortSequences
from ...config.schema import ServingConfig
from ...lowering.chunks.streaming import state_compatibility_id
from ..archive import layout
from ..own_model.imports import imported_by
from .candidate import Candidate, has_dynamic_shape
from .lowest_torch import lowest_torch, symbol_versions
from .verify import VerificationResult


@dataclass(frozen=True)
class BuildInput:
    """The archive's files and settings before an engine is chosen."""

    tree: Path
    weights: str | None
    """The serialized file's name in the tree."""
    config: ServingConfig
    threads: int
    shadow: Shadow | None = None
    """The comparison of answers with the model's own code."""
    short: ShortSequences | None = None
    """The sequences that this code answers."""


def build_manifest(build: BuildInput, candidate: Candidate) -> Manifest:
    """Collect what the serving code has to know of a candidate in the tree, without any measurement."""
    engine, program, config = candidate.engine, candidate.program, build.config
    split = program.chunked
    weights = [] if build.weights is None else [sha256_of(build.tree / build.weights)]
    needs = (RequiredPackage(need.distribution, need.module, need.version) for need in _requirements(build, candidate))
    own_model = next((use.model for use in (build.shadow, build.short) if use is not None), None)
    return Manifest(
        backend=engine.name,
        requires=(*needs, *imported_by(build.tree, own_model)),
        host={**engine.host(), **symbol_versions(_programs(build, candidate).rglob("*.so"))},
        inputs=program.inputs,
        takes_lengths=program.takes_lengths,
        outputs=program.outputs,
        overflow=config.overflow,
        kind="sequence" if split is None else "chunk",
        kind_reason=program.chunking_reason,
        carried=() if split is None else split.carried,
        grid=config.grid,
        shapes="any" if has_dynamic_shape(engine, program) else "grid",
        longest=config.longest,
        shortest=program.shortest,
        short=build.short,
        accepted=tuple(
            AcceptedRange(spec.name, *map(float, spec.value_range))
            for spec in program.inputs
            if spec.name in program.decided and spec.value_range is not None
        ),
        variants=tuple(
            Variant(role, bucket, directory, candidate.engine.estimate_us(build.tree / directory))
            for role, bucket, directory in layout.programs_to_compile(engine, program.parts, config.grid)
        ),
        checks=(),
        costs=(),
        weights=build.weights,
        constants=layout.CONSTANTS if (build.tree / layout.CONSTANTS).is_file() else None,
        codec=config.codec,
        kernel=config.buckets.kernel,
        placement=config.placement,
        device=None if config.device == "auto" else config.device,
        threads=config.threads,
        streaming=None
        if config.streaming is None
        else config.streaming.settings(state_compatibility_id(program, weights)),
        limits=config.limits.limits,
        shadow=build.shadow,
        precision=precision_of(engine, config.precision),
        tolerance=ErrorTolerance(**config.tolerance.model_dump()),
        produced_by=producer_versions(),
    )


def with_errors(manifest: Manifest, verified: Mapping[Bucket, VerificationResult]) -> Manifest:
    """Replace the largest differences from the model in eager mode."""
    checks = (MeasuredError(bucket, result.max_error) for bucket, result in verified.items())
    return replace(manifest, checks=tuple(checks))


def _requirements(build: BuildInput, candidate: Candidate) -> Iterator[Requirement]:
    """Packages for the engine, with the lowest torch that runs its sources, and for a session store on a server."""
    sources = [file.read_text(encoding="utf-8") for file in _programs(build, candidate).rglob(FILE_NAME)]
    lowest = [version for source in sources if (version := lowest_torch(source, torch_version())) is not None]
    streaming = build.config.streaming
    for need in candidate.engine.requirements():
        yield replace(need, version=max([need.version, *lowest], key=release)) if need.module == "torch" else need
    if streaming is not None and streaming.store == "redis":
        yield Requirement("redis", "redis", metadata.version("redis"))


def _programs(build: BuildInput, candidate: Candidate) -> Path:
    return build.tree / layout.PROGRAMS / candidate.engine.name


def producer_versions() -> dict[str, str]:
    """Return the versions with which an archive is made, by distribution."""
    names = ("torchserve-neuron-lstm", "torch", "torch-model-archiver")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
