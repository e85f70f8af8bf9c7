"""Compilations of a model's programs: one for each engine, role and bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...backends.compilation.job import CompileJob
from ...backends.interface import DEFAULTS, Backend, CompileSettings, precision_of
from ...backends.partitioning.backend import PartitionedBackend
from ...bucketing.shapes import BucketGrid, ProgramRole
from ..archive import layout


def compile_jobs(
    engines: Sequence[Backend],
    programs: Mapping[ProgramRole, Path],
    grid: BucketGrid,
    compiled: Path,
    settings: CompileSettings = DEFAULTS,
) -> list[CompileJob]:
    """List the compile jobs, from files of torch.export.save to folders below `compiled`.

    An engine that cannot compute in the precision of `settings` computes in the one it prefers; each program has a
    separate folder below their `workdir`.
    """
    return [
        CompileJob(
            engine.name,
            role,
            bucket,
            programs[role],
            compiled / directory,
            _own_settings(settings, engine, directory),
            engine.config if isinstance(engine, PartitionedBackend) else None,
        )
        for engine in engines
        for role, bucket in layout.programs_to_compile(engine, tuple(programs), grid)
        for directory in [layout.variant_directory(engine.name, role, bucket)]
    ]


def _own_settings(settings: CompileSettings, engine: Backend, directory: str) -> CompileSettings:
    workdir = None if settings.workdir is None else settings.workdir / directory
    return replace(settings, precision=precision_of(engine, settings.precision), workdir=workdir)
