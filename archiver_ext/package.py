"""The steps from a command line to an archive, in the order in which they are decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from ..backends import simulation
from ..backends.compile_job import CompileFailure, CompileJob, CompileOutcome, CompileResult
from ..backends.compile_pool import compile_all, disk_size
from ..backends.exported_program import save_program
from ..backends.interface import Backend, CompileSettings
from ..bucketing.shapes import ProgramRole, role_buckets
from ..config.compiler import TraceArguments
from ..config.load import load_config
from ..config.manifest import Manifest, ManifestError, read_manifest
from ..config.schema import ServingConfig
from ..handlers.runtime.cores import available_cores, threads_per_worker
from ..handlers.runtime.loader import load_archive
from ..inference.private_directory import private_directory
from ..lowering import lower
from ..lowering.program import LoweredModel
from ..lowering.streaming import check_streamable
from . import model_archiver
from .archive import layout
from .archive.workspace import temporary_files_in
from .archive.writer import publish
from .checkpoint import write_weights
from .errors import PackagingError
from .evaluation import evaluate
from .evaluation.evaluate import ToleranceExceeded
from .evaluation.length_choice import choose_lengths
from .evaluation.manifest_builder import BuildInput
from .evaluation.partitioning import cpu_operators_in, partitioner_config, with_cpu_fallback
from .evaluation.reference import make_reference
from .evaluation.selection import (
    Candidate,
    CandidateResult,
    RejectedEngine,
    candidate_engines,
    check_max_length,
    fallback_engines,
    make_candidate,
    select_fastest,
)
from .evaluation.verify import VerificationCase, draw_cases
from .progress import show_progress
from .user_model import (
    build_model,
    check_bucket_selector,
    check_codec,
    importable,
    load_state_dict,
    with_bucket_selector,
)

_PYTHON = ("python", "python3")

_Results = tuple[list[CandidateResult], list[RejectedEngine]]
"""The engines that may be selected, and the others."""


@dataclass(frozen=True)
class PackagingResult:
    """The packaged archive and its evaluation, for the report."""

    archive: Path
    size: int
    """Bytes of the archive."""
    config: ServingConfig
    program: LoweredModel
    """The model's programs as the selected engine was given them."""
    selected: CandidateResult
    manifest: Manifest
    """The manifest of the archive."""
    others: tuple[CandidateResult, ...]
    rejected: tuple[RejectedEngine, ...]
    cpu_operators: tuple[str, ...] = ()
    """Operators that the selected engine leaves to the CPU."""
    notes: tuple[str, ...] = ()
    """The choices that were made where the user's files leave one."""


def package(flags: model_archiver.Flags, manifest: str, console: Console) -> PackagingResult:
    """Make the archive that the archiver's flags ask for; progress goes to `console`.

    Raises:
        PackagingError, ConfigError, LoweringError, LoadError, OSError: there is no archive, nor anything left over.
    """
    destination = model_archiver.check_destination(flags, quiet=True)
    config_file = Path(_required_files(flags))
    config = load_config(config_file)
    engines, rejected = candidate_engines(config)
    with private_directory() as private, temporary_files_in(private), simulation.enable_emulation():
        staged, work = private / "staged", private / "work"
        staged.mkdir()
        work.mkdir()
        tree = model_archiver.stage(flags, staged)
        layout.check_collisions(tree, _given_files(flags))
        with importable(tree):
            result = _build(flags, config, tree, work, console, engines)
        publish(flags, tree, manifest)
    return replace(result, archive=destination, size=disk_size(destination), rejected=(*rejected, *result.rejected))


def _required_files(flags: model_archiver.Flags) -> str:
    """Check the flags that this handler requires; returns the configuration's path."""
    if flags.runtime not in _PYTHON:
        raise PackagingError(f"--runtime {flags.runtime}: the handler neuron_lstm is Python; leave --runtime out")
    if flags.config_file is None:
        raise PackagingError(
            "--config-file is missing: the handler neuron_lstm needs a model-config.yaml with the model's inputs and "
            "buckets. `neuron-lstm init --model-file model.py` writes one to start from"
        )
    if flags.model_file is None:
        raise PackagingError(
            "--model-file is missing: give the Python file that defines the model's class, whose weights come from "
            "--serialized-file as a state dict; or a function of tensors"
        )
    for file in _given_files(flags):
        if not Path(file).is_file():
            raise PackagingError(f"there is no file {file}")
    return flags.config_file


def _given_files(flags: model_archiver.Flags) -> list[str]:
    files = (flags.config_file, flags.model_file, flags.serialized_file, flags.requirements_file)
    return [file for file in files if file is not None]


def _build(
    flags: model_archiver.Flags,
    config: ServingConfig,
    tree: Path,
    work: Path,
    console: Console,
    engines: Sequence[Backend],
) -> PackagingResult:
    """Lower, compile, verify and measure; leave the tree with the selected engine."""
    check_codec(config.codec, tree)
    weights = None if flags.serialized_file is None else Path(flags.serialized_file).name
    serialized_file = None if weights is None else tree / weights
    notes: list[str] = []
    model = build_model(tree / Path(str(flags.model_file)).name, config.model, notes.append)
    found = load_state_dict(model, serialized_file, notes.append)
    if found is not None and serialized_file is not None and not found.is_whole_file:
        write_weights(found.weights, serialized_file)  # the archive holds the weights alone, under the model's names
    program = with_bucket_selector(lower(model, config), config)
    if config.streaming is not None:
        check_streamable(program)
    threads = config.threads or threads_per_worker(available_cores(), config.frontend.maxWorkers)
    config = choose_lengths(program, config, threads, work / "lengths", console)
    check_bucket_selector(config, tree)
    evaluate.write_constants(tree, program.constants)
    build = BuildInput(tree, weights, config, threads)
    directory = Path(str(flags.config_file)).resolve().parent  # the YAML's paths are relative to it
    evaluation = _Evaluation(build, program, directory, work, console)
    results, rejected = evaluation.run(engines, model)
    selected = select_fastest(results)
    evaluation.install(selected)
    return PackagingResult(
        archive=tree,
        size=0,
        config=config,
        program=selected.candidate.program,
        selected=selected,
        manifest=read_manifest(tree),
        others=tuple(result for result in results if result is not selected),
        rejected=tuple(rejected),
        cpu_operators=cpu_operators_in(tree, selected.backend),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Evaluation:
    """Compilation, verification and measurement of the candidates for one archive."""

    build: BuildInput
    program: LoweredModel
    config_directory: Path
    work: Path
    console: Console

    def run(self, engines: Sequence[Backend], model: torch.nn.Module) -> _Results:
        """Evaluate each engine. Under `auto` an engine that fails is rejected; otherwise packaging fails.

        Raises:
            PackagingError: no engine is left.
        """
        candidates = [self._candidate(engine) for engine in engines]
        return self._evaluate_all(candidates, self._cases(model))

    def install(self, selected: CandidateResult) -> None:
        """Put the selected engine into the tree with its measurements, and load it once more as a host will."""
        evaluate.install_engine(self.build, selected.candidate.engine, self.work)
        evaluate.write_final_manifest(self.build, selected)
        load_archive(self.build.tree, self.build.threads)

    def _cases(self, model: torch.nn.Module) -> tuple[VerificationCase, ...]:
        config = self.build.config
        reference = make_reference(model, config, self.program.outputs)
        with show_progress("reference", self.console, every_s=2.0) as report:
            return draw_cases(self.program, config.grid, reference, report, longest=config.longest)

    def _candidate(self, engine: Backend) -> Candidate:
        """An engine with its programs, and the CPU beside it where the YAML allows that and it is needed."""
        config = self.build.config
        candidate = self._plain_candidate(engine)
        options = partitioner_config(config, self.config_directory)
        if options is None:
            return candidate
        parts = candidate.program.parts
        examples = {role: (program, role_buckets(role, config.grid)[0]) for role, program in parts.items()}
        return replace(candidate, engine=with_cpu_fallback(engine, examples, options, self._settings()))

    def _plain_candidate(self, engine: Backend) -> Candidate:
        return make_candidate(engine, self.program, streams=self.build.config.streaming is not None)

    def _settings(self) -> CompileSettings:
        """Compiler settings of the YAML; `trace_kwargs` overrides the same keys outside it."""
        config, directory = self.build.config, self.config_directory
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

    def _evaluate_all(self, candidates: Sequence[Candidate], cases: Sequence[VerificationCase]) -> _Results:
        rejections = [check_max_length(candidate, self.build.config) for candidate in candidates]
        rejected = [rejection for rejection in rejections if rejection is not None]
        fitting = [one for one, rejection in zip(candidates, rejections, strict=True) if rejection is None]
        compiled, failed = self._compile(fitting)
        rejected += failed
        loadable = [candidate for candidate in fitting if candidate.backend in compiled]
        results, failed = self._evaluate(loadable, compiled, cases)
        if not results and not failed:
            tried = [candidate.backend for candidate in fitting]
            if fallback := fallback_engines(self.build.config.backend, tried):
                results, failed = self._evaluate_all([self._plain_candidate(engine) for engine in fallback], cases)
        rejected += failed
        if not results:
            raise PackagingError("\n".join(rejection.reason for rejection in rejected))
        return results, rejected

    def _compile(self, candidates: Sequence[Candidate]) -> tuple[dict[str, list[CompileResult]], list[RejectedEngine]]:
        """Compile for all engines together; returns the results by engine, and the engines that failed."""
        jobs: list[CompileJob] = []
        files: dict[ProgramRole, Path] = {}
        for candidate in candidates:
            programs = candidate.program.parts
            for role in programs.keys() - files.keys():
                files[role] = self.work / f"{role}.pt2"
                save_program(programs[role], files[role])
            own = {role: files[role] for role in programs}
            jobs += evaluate.compile_jobs([candidate.engine], own, self.build.config.grid, self.work, self._settings())
        done = 0

        def count(outcome: CompileOutcome) -> None:
            nonlocal done
            done += 1
            report(done, len(jobs), _sentence(outcome))

        with show_progress("compile", self.console) as report:
            outcomes = compile_all(jobs, self.work / "compilers", count)
        failed = {outcome.job.backend: outcome for outcome in outcomes if isinstance(outcome, CompileFailure)}
        compiled: dict[str, list[CompileResult]] = {}
        for outcome in outcomes:
            if isinstance(outcome, CompileResult) and outcome.job.backend not in failed:
                compiled.setdefault(outcome.job.backend, []).append(outcome)
        return compiled, [RejectedEngine(name, f"{one.job}: {one.reason}") for name, one in failed.items()]

    def _evaluate(
        self,
        candidates: Sequence[Candidate],
        compiled: Mapping[str, Sequence[CompileResult]],
        cases: Sequence[VerificationCase],
    ) -> _Results:
        """Evaluate each engine in the tree, one after the other."""
        tree = self.build.tree
        results: list[CandidateResult] = []
        rejected: list[RejectedEngine] = []
        for candidate in candidates:
            name = candidate.backend
            evaluate.install_engine(self.build, candidate.engine, self.work)
            try:
                with show_progress("verify", self.console, every_s=2.0) as report:
                    results.append(evaluate.evaluate_engine(self.build, candidate, compiled[name], cases, report))
            except ToleranceExceeded as error:
                rejected.append(RejectedEngine(name, str(error)))
            except ManifestError:
                raise  # this package wrote what it cannot read: the engine is not at fault
            except RuntimeError as error:  # of the loader or of the engine itself
                rejected.append(RejectedEngine(name, f"{name} cannot run the programs that it compiled: {error}"))
            evaluate.remove_engine(tree, candidate.engine, self.work)
        return results, rejected


def _sentence(outcome: CompileOutcome) -> str:
    if isinstance(outcome, CompileFailure):
        return f"{outcome.job} failed"
    return f"{outcome.job} in {outcome.seconds:.1f} s"
