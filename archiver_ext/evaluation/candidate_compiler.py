"""Compilation of the candidates' programs, one for each engine, role and bucket, with the settings of the YAML."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from torch.export import ExportedProgram

from ...backends.compilation.job import CompileFailure, CompileJob, CompileOutcome, CompileResult
from ...backends.compilation.pool import CompileProcesses, compile_all
from ...backends.exported_program import save_program, specialize
from ...backends.interface import Backend, CompileSettings, precision_of
from ...backends.partitioning.backend import PartitionedBackend
from ...backends.partitioning.partition import PartitionError, partition
from ...bucketing.shapes import BucketGrid, ProgramRole, role_buckets
from ...config.partitioner import PartitionerBlock, TraceArguments
from ...config.schema import ServingConfig
from ...lowering.program import LoweredModel
from ..archive import layout
from ..errors import refusing
from ..progress import show_progress
from .candidate import Candidate, RejectedEngine, make_candidate


@dataclass(frozen=True)
class CandidateCompiler:
    """The files and settings of the compilations for one archive."""

    config: ServingConfig
    program: LoweredModel
    config_directory: Path
    """The YAML's paths are relative to it."""
    work: Path
    """The compiled programs are below it, as they will be in the archive."""
    console: Console
    processes: CompileProcesses

    def candidate(self, engine: Backend) -> Candidate:
        """Pair an engine with its programs, and with the CPU where the YAML allows that and it is needed."""
        candidate = self.plain_candidate(engine)
        options = self.config.partitioner_config
        if options is None:
            return candidate
        options = options.model_copy(update={"trace_kwargs": None})  # they are among the compiler's settings
        parts, grid = candidate.program.parts, self.config.grid
        fixed = [specialize(program, role_buckets(role, grid)[0]) for role, program in parts.items()]
        return replace(candidate, engine=_with_cpu_fallback(engine, fixed, options))

    def plain_candidate(self, engine: Backend) -> Candidate:
        """Pair an engine with its programs."""
        beyond_grid = self.config.longest > self.config.grid.lengths[-1]
        return make_candidate(engine, self.program, streams=self.config.streaming is not None, beyond_grid=beyond_grid)

    def compile(
        self, candidates: Sequence[Candidate]
    ) -> tuple[list[tuple[Candidate, tuple[CompileResult, ...]]], list[RejectedEngine]]:
        """Compile for all candidates together, in the buckets of the grid.

        Returns the candidates with their compiled programs, and the engines that failed.
        """
        self.work.mkdir(exist_ok=True)
        jobs = [job for candidate in candidates for job in self._jobs(candidate)]
        done = 0

        def count(outcome: CompileOutcome) -> None:
            nonlocal done
            done += 1
            result = "failed" if isinstance(outcome, CompileFailure) else f"in {outcome.seconds:.1f} s"
            report(done, len(jobs), f"{outcome.job} {result}")

        with show_progress("compile", self.console) as report:
            outcomes = compile_all(jobs, self.processes, count)
        failures = {outcome.job.backend: outcome for outcome in outcomes if isinstance(outcome, CompileFailure)}
        results = [outcome for outcome in outcomes if isinstance(outcome, CompileResult)]
        compiled = [
            (candidate, tuple(result for result in results if result.job.backend == candidate.backend))
            for candidate in candidates
            if candidate.backend not in failures
        ]
        rejected = [RejectedEngine(name, f"{failure.job}: {failure.reason}") for name, failure in failures.items()]
        return compiled, rejected

    def _jobs(self, candidate: Candidate) -> list[CompileJob]:
        programs = candidate.program.parts
        files = {role: self.work / f"{role}.pt2" for role in programs}
        for role, file in files.items():
            if not file.exists():
                save_program(programs[role], file)
        return compile_jobs(candidate.engine, files, self.config.grid, self.work, self._settings())

    def _settings(self) -> CompileSettings:
        """Compiler settings of the YAML; `trace_kwargs` overrides the same keys outside it."""
        config, directory = self.config, self.config_directory
        partitioner = config.partitioner_config
        options = (partitioner and partitioner.trace_kwargs) or TraceArguments()
        workdir = options.compiler_workdir or config.compiler_workdir
        arguments = config.compiler_args if options.compiler_args is None else options.compiler_args
        return CompileSettings(
            precision=config.precision,
            workdir=None if workdir is None else directory / workdir,
            args=arguments or (),
            python=None if config.compiler_python is None else directory / config.compiler_python,
        )


def _with_cpu_fallback(engine: Backend, programs: Sequence[ExportedProgram], config: PartitionerBlock) -> Backend:
    """Return the engine if it supports every operator of every program, else a partitioned one.

    Raises `PackagingError`: the segments violate the limits of `config`.
    """
    with refusing(PartitionError, "neuron_lstm.partitioner_config."):
        divided = [partition(program, lambda node: not engine.refusal(node), config) for program in programs]
    is_whole = all(segment.place == "device" for program in divided for segment in program.segments)
    return engine if is_whole else PartitionedBackend(engine, config)


def compile_jobs(
    engine: Backend, programs: Mapping[ProgramRole, Path], grid: BucketGrid, compiled: Path, settings: CompileSettings
) -> list[CompileJob]:
    """List the compile jobs, from files of torch.export.save to folders below `compiled`.

    An engine that cannot compute in the precision of `settings` computes in the one it prefers; each program has a
    separate folder below their `workdir`.
    """
    precision, workdir = precision_of(engine, settings.precision), settings.workdir
    return [
        CompileJob(
            engine.name,
            role,
            bucket,
            programs[role],
            compiled / directory,
            replace(settings, precision=precision, workdir=None if workdir is None else workdir / directory),
            engine.config if isinstance(engine, PartitionedBackend) else None,
        )
        for role, bucket, directory in layout.programs_to_compile(engine, programs, grid)
    ]


def is_engine_error(error: Exception) -> bool:
    """Whether an engine failed, and not the code of this package.

    Torch and OpenVINO raise RuntimeError. ONNX Runtime has classes of its own, directly below Exception.

    >>> is_engine_error(RuntimeError("out of memory"))
    True
    >>> is_engine_error(KeyError("name"))
    False
    """
    others = {__name__.partition(".")[0], *sys.stdlib_module_names}
    return isinstance(error, RuntimeError) or type(error).__module__.partition(".")[0] not in others
