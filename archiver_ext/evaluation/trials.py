"""Trials of the candidates for one archive: all are compiled, verified, measured and compared.

A trial runs while the files of its engine (programs, serving code) are in the archive's tree.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from ...backends.compilation.job import CompileResult
from ...backends.interface import Backend
from ...backends.partitioning.partitioned_program import SEGMENTS
from ...backends.subprocesses import PACKAGE
from ...backends.torch_files import torch_file
from ...config.manifest import ManifestError
from ...config.manifest_writer import write_manifest
from ..archive import layout
from ..archive.carried_files import carried_files
from ..errors import PackagingError
from ..progress import show_progress
from .candidate import Candidate, CandidateResult, RejectedEngine, check_max_length
from .candidate_compiler import CandidateCompiler, is_engine_error
from .evaluate import EvaluatedEngine, evaluate_engine
from .manifest_builder import BuildInput, build_manifest, with_costs, with_errors
from .reference import make_reference
from .selection import compare, fallback_engines
from .verification_cases import VerificationCase, draw_cases
from .verify import ToleranceExceeded


@dataclass(frozen=True)
class TrialResults:
    """The engines that may be selected, in the order of the candidates, and the others."""

    measured: tuple[CandidateResult, ...]
    rejected: tuple[RejectedEngine, ...]


@dataclass(frozen=True)
class _Outcome:
    """Results of some trials; they add up."""

    evaluated: tuple[EvaluatedEngine, ...] = ()
    failed: tuple[RejectedEngine, ...] = ()
    """Engines that compiled the model and then failed."""
    refused: tuple[RejectedEngine, ...] = ()
    """Engines that did not compile the model."""

    def __add__(self, other: _Outcome) -> _Outcome:
        return _Outcome(self.evaluated + other.evaluated, self.failed + other.failed, self.refused + other.refused)


@dataclass(frozen=True)
class Trials:
    """The trials for one archive, in the archive's own tree."""

    build: BuildInput
    compiler: CandidateCompiler
    cases: Sequence[VerificationCase]
    """Requests with their outputs in eager mode."""
    console: Console

    def run(self, candidates: Sequence[Candidate]) -> TrialResults:
        """Evaluate each candidate. Under `auto` an engine that fails is rejected; otherwise packaging fails.

        Raises:
            PackagingError: no engine is left.
        """
        outcome = self._try_all(candidates)
        if not outcome.evaluated and not outcome.failed:
            tried = [candidate.backend for candidate in candidates]
            engines = fallback_engines(self.build.config, tried)
            outcome += self._try_all([self.compiler.plain_candidate(engine) for engine in engines])
        rejected = outcome.refused + outcome.failed
        if not outcome.evaluated:
            raise PackagingError("\n".join(rejection.reason for rejection in rejected))
        return TrialResults(compare(outcome.evaluated), rejected)

    def _try_all(self, candidates: Sequence[Candidate]) -> _Outcome:
        """Compile the candidates that fit the configuration for every bucket, and evaluate them."""
        rejections = [check_max_length(candidate, self.build.config) for candidate in candidates]
        fitting = [candidate for candidate, reason in zip(candidates, rejections, strict=True) if reason is None]
        outcome = _Outcome(refused=tuple(rejection for rejection in rejections if rejection is not None))
        if not fitting:
            return outcome
        compiled, refused = self.compiler.compile(fitting, self.build.config.grid)
        outcome += _Outcome(refused=tuple(refused))
        for candidate, programs in compiled:
            outcome += self._evaluate(candidate, programs)
        return outcome

    def _evaluate(self, candidate: Candidate, programs: Sequence[CompileResult]) -> _Outcome:
        evaluated: list[EvaluatedEngine] = []

        def run() -> None:
            with show_progress("verify", self.console, every_s=2.0) as report:
                evaluated.append(evaluate_engine(self.build, candidate, programs, self.cases, report))

        failed = self._run_in_tree(candidate, run)
        return _Outcome(evaluated=tuple(evaluated)) if failed is None else _Outcome(failed=(failed,))

    def _run_in_tree(self, candidate: Candidate, run: Callable[[], None]) -> RejectedEngine | None:
        """Call `run` while the engine's programs are in the tree; returns its failure."""
        name, work = candidate.backend, self.compiler.work
        install_engine(self.build, candidate.engine, work)
        failed = None
        try:
            run()
        except ToleranceExceeded as error:
            failed = RejectedEngine(name, str(error))
        except ManifestError:
            raise  # this package wrote what it cannot read: the engine is not at fault
        except Exception as error:
            if not is_engine_error(error):
                raise
            failed = RejectedEngine(name, f"{name} cannot run the programs that it compiled: {error}")
        _remove_engine(self.build.tree, candidate.engine, work)
        return failed


def prepare_trials(build: BuildInput, compiler: CandidateCompiler, model: torch.nn.Module) -> Trials:
    """Prepare the trials: draw requests, and compute their outputs in eager mode."""
    config, program = compiler.config, compiler.program
    reference = make_reference(model, config, program.outputs)
    with show_progress("reference", compiler.console, every_s=2.0) as report:
        cases = draw_cases(program, config.grid, reference, report, longest=config.longest)
    return Trials(build, compiler, cases, compiler.console)


def write_constants(tree: Path, constants: Mapping[str, torch.Tensor]) -> None:
    """Write the tensors that lowering lifted out of the model's code, if there are any."""
    if constants:
        path = tree / layout.CONSTANTS
        path.parent.mkdir(exist_ok=True)
        with torch_file(path) as file:
            torch.save(dict(constants), file)


def install_engine(build: BuildInput, engine: Backend, compiled: Path) -> None:
    """Move an engine's programs from `compiled` into the tree, and copy the serving files beside them."""
    target = build.tree / layout.PROGRAMS / engine.name
    target.parent.mkdir(exist_ok=True)
    (compiled / layout.PROGRAMS / engine.name).rename(target)
    streaming = build.config.streaming
    files = carried_files(
        engine.name, cpu_segments=any(target.rglob(SEGMENTS)), store=None if streaming is None else streaming.store
    )
    layout.copy_serving_files(build.tree, layout.package_directory(), files)


def _remove_engine(tree: Path, engine: Backend, compiled: Path) -> None:
    """Undo `install_engine`."""
    (tree / layout.PROGRAMS / engine.name).rename(compiled / layout.PROGRAMS / engine.name)
    try:
        shutil.rmtree(tree / PACKAGE)
    except OSError as error:  # it names the last part of a path alone
        raise OSError(error.errno, error.strerror, str(tree / PACKAGE)) from error


def write_final_manifest(build: BuildInput, result: CandidateResult) -> None:
    """Write variants.json with the measurements of the selected candidate."""
    manifest = with_costs(build_manifest(build, result.candidate), result.costs, result.padding, result.measurement)
    write_manifest(with_errors(manifest, result.verified), build.tree)
