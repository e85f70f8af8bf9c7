"""Compilation of the candidates' programs, with the settings of the YAML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ...backends.compilation.job import CompileFailure, CompileJob, CompileOutcome, CompileResult
from ...backends.compilation.pool import compile_all
from ...backends.compilation.processes import CompileProcesses
from ...backends.compile_cache.program_digest import program_digest
from ...backends.exported_program import save_program
from ...backends.interface import Backend, CompileSettings
from ...bucketing.shapes import BucketGrid, role_buckets
from ...config.compiler import TraceArguments
from ...config.schema import ServingConfig
from ...lowering.program import LoweredModel
from ..progress import show_progress
from .candidate import Candidate, RejectedEngine, make_candidate
from .compile_jobs import compile_jobs
from .partitioning import partitioner_config, with_cpu_fallback


@dataclass(frozen=True)
class Compiled:
    """The compiled programs of one candidate."""

    candidate: Candidate
    programs: tuple[CompileResult, ...]
    is_complete: bool
    """False: the time was up before all of them were compiled."""


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
    cache: Path | None
    """The folder of the cache of compiled programs, if there is one."""
    processes: CompileProcesses

    def candidate(self, engine: Backend) -> Candidate:
        """Pair an engine with its programs, and with the CPU where the YAML allows that and it is needed."""
        candidate = self.plain_candidate(engine)
        options = partitioner_config(self.config, self.config_directory)
        if options is None:
            return candidate
        parts = candidate.program.parts
        examples = {role: (program, role_buckets(role, self.config.grid)[0]) for role, program in parts.items()}
        return replace(candidate, engine=with_cpu_fallback(engine, examples, options, self._settings()))

    def plain_candidate(self, engine: Backend) -> Candidate:
        """Pair an engine with its programs."""
        beyond_grid = self.config.longest > self.config.grid.lengths[-1]
        return make_candidate(engine, self.program, streams=self.config.streaming is not None, beyond_grid=beyond_grid)

    def compile(
        self,
        candidates: Sequence[Candidate],
        grids: Sequence[BucketGrid],
        until: float | None = None,
    ) -> tuple[list[Compiled], list[RejectedEngine]]:
        """Compile for all candidates together, in the buckets of `grids`.

        After `until`, a time of the monotonic clock, no program is begun. Returns the compiled candidates, and the
        engines that failed.
        """
        self.work.mkdir(exist_ok=True)
        jobs = [job for one in candidates for job in self._jobs(one, grids)]
        outcomes = self._compile_jobs(jobs, until)
        failed = {outcome.job.backend: outcome for outcome in outcomes if isinstance(outcome, CompileFailure)}
        results = [outcome for outcome in outcomes if isinstance(outcome, CompileResult)]
        compiled = []
        for candidate in candidates:
            if candidate.backend not in failed:
                own = tuple(result for result in results if result.job.backend == candidate.backend)
                wanted = sum(job.backend == candidate.backend for job in jobs)
                compiled.append(Compiled(candidate, own, is_complete=len(own) == wanted))
        return compiled, [RejectedEngine(name, f"{one.job}: {one.reason}") for name, one in failed.items()]

    def _jobs(self, candidate: Candidate, grids: Sequence[BucketGrid]) -> Iterator[CompileJob]:
        programs = candidate.program.parts
        files = {role: self.work / f"{role}.pt2" for role in programs}
        for role, file in files.items():
            if not file.exists():
                save_program(programs[role], file)
        digests = {role: program_digest(program) for role, program in programs.items()}
        for grid in grids:
            for job in compile_jobs([candidate.engine], files, grid, self.work, self._settings()):
                yield replace(job, content=digests[job.part])

    def _compile_jobs(self, jobs: Sequence[CompileJob], until: float | None) -> list[CompileOutcome]:
        done = 0

        def count(outcome: CompileOutcome) -> None:
            nonlocal done
            done += 1
            report(done, len(jobs), _sentence(outcome))

        with show_progress("compile", self.console) as report:
            return compile_all(jobs, self.processes, count, cache=self.cache, until=until)

    def _settings(self) -> CompileSettings:
        """Compiler settings of the YAML; `trace_kwargs` overrides the same keys outside it."""
        config, directory = self.config, self.config_directory
        partitioner = config.partitioner_config
        own = (partitioner and partitioner.trace_kwargs) or TraceArguments()
        workdir = own.compiler_workdir or config.compiler_workdir
        arguments = config.compiler_args if own.compiler_args is None else own.compiler_args
        return CompileSettings(
            precision=config.precision,
            workdir=None if workdir is None else directory / workdir,
            args=arguments or (),
            python=None if config.compiler_python is None else directory / config.compiler_python,
        )


def _sentence(outcome: CompileOutcome) -> str:
    if isinstance(outcome, CompileFailure):
        return f"{outcome.job} failed"
    return f"{outcome.job} from the cache" if outcome.cached else f"{outcome.job} in {outcome.seconds:.1f} s"
