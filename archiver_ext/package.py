"""The whole way from a command line to an archive, in the order in which it is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from ..backends import simulation
from ..backends.compile_pool import CompileFailure, CompileJob, CompileOutcome, CompileResult, compile_all, disk_size
from ..backends.exported_program import save_program
from ..backends.interface import Backend, CompileSettings
from ..backends.registry import get_backend
from ..bucketing.shapes import Bucket, BucketGrid, ProgramRole, role_buckets
from ..config.compiler import TraceArguments
from ..config.load import load_config
from ..config.manifest import ManifestError
from ..config.schema import ServingConfig
from ..handlers.runtime.host import available_cores, threads_per_worker
from ..handlers.runtime.loader import load_archive
from ..lowering import lower
from ..lowering.program import LoweredModel
from ..lowering.streaming import check_streamable
from . import model_archiver
from .archive import layout
from .archive.workspace import private_directory, temporary_files_in
from .archive.writer import publish
from .build import evaluate
from .build.evaluate import BuildInput, ToleranceExceeded
from .build.length_choice import choose_lengths
from .build.partitioning import cpu_operators_in, partitioner_config, with_cpu_fallback
from .build.reference import make_reference
from .build.selection import (
    CandidateResult,
    RejectedEngine,
    candidate_engines,
    check_max_length,
    fallback_engines,
    program_for_engine,
    select_fastest,
)
from .build.verify import VerificationCase, draw_cases
from .errors import PackagingError
from .progress import show_progress
from .user_model import check_bucket_selector, check_codec, importable, load_model, with_bucket_selector

_PYTHON = ("python", "python3")


@dataclass(frozen=True)
class PackagingResult:
    """What was packaged, for the report."""

    archive: Path
    size: int
    """Bytes of the archive."""
    config: ServingConfig
    program: LoweredModel
    kept: CandidateResult
    others: tuple[CandidateResult, ...]
    rejected: tuple[RejectedEngine, ...]
    on_cpu: tuple[str, ...] = ()
    """Operators that the kept engine leaves to the CPU."""


def package(flags: model_archiver.Flags, manifest: str, console: Console) -> PackagingResult:
    """Make the archive that the archiver's flags ask for; progress goes to `console`.

    Raises:
        PackagingError, ConfigError, LoweringError, LoadError, OSError: there is no archive, nor anything left over.
    """
    destination = model_archiver.check_destination(flags, quiet=True)
    config = load_config(Path(_needed(flags)))
    engines, dropped = candidate_engines(config)
    with private_directory() as private, temporary_files_in(private), simulation.enable_emulation():
        staged = model_archiver.stage(flags, _made(private / "staged"))
        layout.check_collisions(staged, _files_of_flags(flags))
        with importable(staged):
            build = _Build(flags, config, staged, _made(private / "work"), console)
            outcome = _build(build, engines, dropped)
        publish(flags, staged, manifest)
    return replace(outcome, archive=destination, size=disk_size(destination))


def _needed(flags: model_archiver.Flags) -> str:
    """Check the flags that the archiver leaves optional and this handler does not. Returns the configuration's path."""
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
    for file in _files_of_flags(flags):
        if not Path(file).is_file():
            raise PackagingError(f"there is no file {file}")
    return flags.config_file


def _files_of_flags(flags: model_archiver.Flags) -> list[str]:
    files = (flags.config_file, flags.model_file, flags.serialized_file, flags.requirements_file)
    return [file for file in files if file is not None]


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@dataclass(frozen=True)
class _Build:
    """Where one archive is built."""

    flags: model_archiver.Flags
    config: ServingConfig
    staged: Path
    work: Path
    console: Console

    @property
    def weights(self) -> Path | None:
        """The serialized file as it lies in the tree."""
        return None if self.flags.serialized_file is None else self.staged / Path(self.flags.serialized_file).name


def _build(build: _Build, engines: Sequence[Backend], dropped: Sequence[RejectedEngine]) -> PackagingResult:
    """Lower, compile, verify and measure; leave the tree with the engine that is kept."""
    check_codec(build.config.codec, build.staged)
    model = load_model(build.staged / Path(str(build.flags.model_file)).name, build.weights, build.config.model.args)
    program = with_bucket_selector(lower(model, build.config), build.config)
    if build.config.streaming is not None:
        check_streamable(program)
    threads = _threads(build.config)
    config = choose_lengths(program, build.config, threads, build.work / "lengths", build.console)
    check_bucket_selector(config, build.staged)
    build = replace(build, config=config)
    subject = BuildInput(
        tree=build.staged,
        weights=None if build.weights is None else build.weights.name,
        config=config,
        program=program,
        threads=threads,
    )
    evaluate.write_constants(subject)
    engines = _divided(build, subject, engines)
    trials, out = _try_all(build, subject, engines, _cases(build, subject, model))
    kept = select_fastest(trials)
    _finish(build, subject, kept, engines)
    others = tuple(other for other in trials if other is not kept)
    program = _for_engine(subject, _engine_of(kept, engines)).program
    on_cpu = cpu_operators_in(build.staged, kept.backend)
    return PackagingResult(build.staged, 0, build.config, program, kept, others, (*dropped, *out), on_cpu)


def _for_engine(subject: BuildInput, engine: Backend) -> BuildInput:
    """The subject with the programs that this engine is given."""
    return replace(
        subject, program=program_for_engine(subject.program, engine, streams=subject.config.streaming is not None)
    )


def _engine_of(trial: CandidateResult, engines: Sequence[Backend]) -> Backend:
    """The engine that a trial was of; the last resort is not among those asked for."""
    return next((engine for engine in engines if engine.name == trial.backend), None) or get_backend(trial.backend)


def _threads(config: ServingConfig) -> int:
    """Threads that a worker will have on a host like this one."""
    return config.threads or threads_per_worker(available_cores(), config.frontend.maxWorkers)


def _cases(build: _Build, subject: BuildInput, model: torch.nn.Module) -> tuple[VerificationCase, ...]:
    reference = make_reference(model, build.config, subject.program.outputs)
    with show_progress("eager", build.console, every_s=2.0) as report:
        return draw_cases(subject.program, build.config.grid, reference, report, longest=build.config.longest)


def _try_all(
    build: _Build, subject: BuildInput, engines: Sequence[Backend], cases: Sequence[VerificationCase]
) -> tuple[list[CandidateResult], list[RejectedEngine]]:
    """Compile, verify and measure each engine. Under `auto` an engine that fails drops out, else it is the end.

    Raises:
        PackagingError: no engine is left.
    """
    owned = ((engine, _for_engine(subject, engine).program) for engine in engines)
    short = [drop for engine, program in owned if (drop := check_max_length(engine, program, build.config)) is not None]
    engines = [engine for engine in engines if engine.name not in {drop.backend for drop in short}]
    compiled, failed = _compile(build, subject, engines)
    failed = [*short, *failed]
    trials, missed = _attempt(
        build, subject, [engine for engine in engines if engine.name in compiled], compiled, cases
    )
    if (
        not trials
        and not missed
        and (eager := fallback_engines(build.config.backend, [engine.name for engine in engines]))
    ):
        trials, more = _try_all(build, subject, eager, cases)
        return trials, [*failed, *more]
    if not trials:
        raise PackagingError("\n".join(drop.reason for drop in [*failed, *missed]))
    return trials, [*failed, *missed]


def _compile(
    build: _Build, subject: BuildInput, engines: Sequence[Backend]
) -> tuple[dict[str, list[CompileResult]], list[RejectedEngine]]:
    """Compile for every engine at once. Returns what succeeded, by engine, and the engines that are out."""
    jobs: list[CompileJob] = []
    files: dict[ProgramRole, Path] = {}
    for engine in engines:
        parts = _for_engine(subject, engine).program.parts
        for part in parts.keys() - files.keys():
            files[part] = build.work / f"{part}.pt2"
            save_program(parts[part], files[part])
        own = {part: files[part] for part in parts}
        jobs += evaluate.compile_jobs([engine], own, build.config.grid, build.work, _settings(build))
    done = 0

    def tell(result: CompileOutcome) -> None:
        nonlocal done
        done += 1
        report(done, len(jobs), _sentence(result))

    with show_progress("compile", build.console) as report:
        results = compile_all(jobs, build.work / "compilers", tell)
    failed = {result.job.backend: result for result in results if isinstance(result, CompileFailure)}
    compiled: dict[str, list[CompileResult]] = {}
    for result in results:
        if isinstance(result, CompileResult) and result.job.backend not in failed:
            compiled.setdefault(result.job.backend, []).append(result)
    return compiled, [RejectedEngine(name, f"{result.job}: {result.reason}") for name, result in failed.items()]


def _divided(build: _Build, subject: BuildInput, engines: Sequence[Backend]) -> list[Backend]:
    """The engines, with the CPU at their side where the YAML allows it and they leave operators out."""
    config = partitioner_config(build.config, _beside(build))
    if config is None:
        return list(engines)
    settings = _settings(build)
    examples = {engine.name: _examples(_for_engine(subject, engine).program, build.config.grid) for engine in engines}
    return [with_cpu_fallback(engine, examples[engine.name], config, settings) for engine in engines]


def _examples(
    program: LoweredModel, grid: BucketGrid
) -> dict[ProgramRole, tuple[torch.export.ExportedProgram, Bucket]]:
    """Each program with a bucket to divide it for."""
    return {part: (one, role_buckets(part, grid)[0]) for part, one in program.parts.items()}


def _beside(build: _Build) -> Path:
    """Paths of the YAML are relative to it, as those of its other files."""
    return Path(_needed(build.flags)).resolve().parent


def _settings(build: _Build) -> CompileSettings:
    """What `trace_kwargs` says to the compiler stands in place of the same keys outside."""
    config, beside = build.config, _beside(build)
    partitioner = config.partitioner_config
    own = (partitioner and partitioner.trace_kwargs) or TraceArguments()
    workdir = own.compiler_workdir or config.compiler_workdir
    arguments = config.compiler_args if own.compiler_args is None else own.compiler_args
    return CompileSettings(
        precision=config.precision,
        workdir=None if workdir is None else beside / workdir,
        args=arguments or (),
        python=None if config.compiler_python is None else beside / config.compiler_python,
    )


def _sentence(result: CompileOutcome) -> str:
    if isinstance(result, CompileFailure):
        return f"{result.job} failed"
    return f"{result.job} in {result.seconds:.1f} s"


def _attempt(
    build: _Build,
    subject: BuildInput,
    engines: Sequence[Backend],
    compiled: Mapping[str, Sequence[CompileResult]],
    cases: Sequence[VerificationCase],
) -> tuple[list[CandidateResult], list[RejectedEngine]]:
    """Try each engine in the tree, one after the other."""
    trials: list[CandidateResult] = []
    missed: list[RejectedEngine] = []
    for engine in engines:
        evaluate.install_engine(subject, engine, build.work)
        try:
            with show_progress("verify", build.console, every_s=2.0) as report:
                own = _for_engine(subject, engine)
                trials.append(evaluate.evaluate_engine(own, engine, compiled[engine.name], cases, report))
        except ToleranceExceeded as error:
            missed.append(RejectedEngine(engine.name, str(error)))
        except ManifestError:
            raise  # we wrote what we cannot read: no fault of the engine's
        except RuntimeError as error:  # of the loader or of the engine itself
            missed.append(RejectedEngine(engine.name, f"{engine.name} cannot run what it compiled: {error}"))
        evaluate.remove_engine(subject, engine, build.work)
    return trials, missed


def _finish(build: _Build, subject: BuildInput, kept: CandidateResult, engines: Sequence[Backend]) -> None:
    """Put the kept engine into the tree with its measurements, and load it once more as a host will."""
    engine = _engine_of(kept, engines)
    evaluate.install_engine(subject, engine, build.work)
    evaluate.write_tree_manifest(_for_engine(subject, engine), engine, kept)
    load_archive(subject.tree, subject.threads)
