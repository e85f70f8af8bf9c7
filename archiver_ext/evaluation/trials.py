"""Trials of the candidates for one archive: all are compiled, verified, measured and compared.

A trial runs while the files of its engine (programs, serving code) are in the archive's tree.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...backends.compilation.job import CompileResult
from ...backends.interface import Backend
from ...backends.partitioning.partitioned_program import SEGMENTS
from ...backends.subprocesses import PACKAGE
from ...backends.torch_files import torch_file
from ...config.manifest import ManifestError
from ...lowering.errors import LoweringError
from ..archive import layout
from ..archive.carried_files import carried_files
from ..errors import PackagingError
from ..progress import show_progress
from .candidate import Candidate, CandidateResult, RejectedEngine, check_integers, check_max_length
from .candidate_compiler import CandidateCompiler, is_engine_error
from .evaluate import EvaluatedEngine, evaluate_engine
from .manifest_builder import BuildInput
from .reference import make_reference
from .selection import compare, fallback_engines
from .verification_cases import Cases, draw_cases
from .verify import FailsOnPadding, ToleranceExceeded


class AllDiffer(PackagingError):
    """A lowered model that differs from the user's on every engine."""


@dataclass
class Trials:
    """The trials for one archive, in the archive's own tree, and the engines so far."""

    build: BuildInput
    compiler: CandidateCompiler
    cases: Cases
    """Requests with their outputs in eager mode."""
    evaluated: list[EvaluatedEngine] = field(default_factory=list)
    failed: list[RejectedEngine] = field(default_factory=list)
    """Engines that compiled the model and then failed."""
    refused: list[RejectedEngine] = field(default_factory=list)
    """Engines that did not compile the model."""
    wrong: list[ToleranceExceeded | FailsOnPadding] = field(default_factory=list)
    """Errors of engines that differ from the model, or fail on padding, which no engine can mend."""

    def run(self, candidates: Sequence[Candidate]) -> tuple[CandidateResult, ...]:
        """Evaluate each candidate. Under `auto` an engine that fails is rejected; otherwise packaging fails.

        Returns the engines that may be selected, in the order of the candidates.

        Raises `AllDiffer`: every engine differs from the model.
        Raises `LoweringError`: the programs fail on padding.
        Raises `PackagingError`: no engine is left, for other reasons too.
        """
        self._try_all(candidates)
        if not self.evaluated and not self.failed:
            engines = fallback_engines(self.build.config, [candidate.backend for candidate in candidates])
            self._try_all([self.compiler.plain_candidate(engine) for engine in engines])
        if not self.evaluated:
            reasons = "\n".join(rejection.reason for rejection in self.rejected)
            if any(isinstance(error, FailsOnPadding) for error in self.wrong):
                raise LoweringError(reasons)
            raise AllDiffer(reasons) if len(self.wrong) == len(self.rejected) else PackagingError(reasons)
        return compare(self.evaluated)

    @property
    def rejected(self) -> tuple[RejectedEngine, ...]:
        """The engines that cannot be selected."""
        return (*self.refused, *self.failed)

    def _try_all(self, candidates: Sequence[Candidate]) -> None:
        """Compile the candidates that fit the configuration for every bucket, and evaluate them."""
        rejections = [check_max_length(one, self.build.config) or check_integers(one) for one in candidates]
        fitting = [candidate for candidate, reason in zip(candidates, rejections, strict=True) if reason is None]
        self.refused += [rejection for rejection in rejections if rejection is not None]
        if not fitting:
            return
        compiled, refused = self.compiler.compile(fitting)
        self.refused += refused
        for candidate, programs in compiled:
            self._evaluate(candidate, programs)

    def _evaluate(self, candidate: Candidate, programs: Sequence[CompileResult]) -> None:
        name, work = candidate.backend, self.compiler.work
        install_engine(self.build, candidate.engine, work)
        try:
            with show_progress("verify", self.compiler.console, every_s=2.0) as report:
                self.evaluated.append(evaluate_engine(self.build, candidate, programs, self.cases, report))
        except (ToleranceExceeded, FailsOnPadding) as error:
            self.failed.append(RejectedEngine(name, str(error)))
            self.wrong.append(error)
        except ManifestError:
            raise  # this package wrote what it cannot read: the engine is not at fault
        except Exception as error:
            if not is_engine_error(error):
                raise
            self.failed.append(RejectedEngine(name, f"{name} cannot run the programs that it compiled: {error}"))
        (self.build.tree / layout.PROGRAMS / name).rename(work / layout.PROGRAMS / name)  # as before `install_engine`
        code = self.build.tree / PACKAGE
        try:
            shutil.rmtree(code)
        except OSError as error:  # it names the last part of a path alone
            raise OSError(error.errno, error.strerror, str(code)) from error


def prepare_trials(build: BuildInput, compiler: CandidateCompiler, model: torch.nn.Module) -> Trials:
    """Prepare the trials: draw requests, and compute their outputs in eager mode."""
    config, program = compiler.config, compiler.program
    reference = make_reference(model, config, program.outputs)
    with show_progress("reference", compiler.console, every_s=2.0) as report:
        return Trials(build, compiler, draw_cases(program, config.grid, reference, report, longest=config.longest))


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
    streaming, is_divided = build.config.streaming, any(target.rglob(SEGMENTS))
    store = None if streaming is None else streaming.store
    own_model, shadow = build.short is not None, build.shadow is not None
    files = carried_files(engine.name, cpu_segments=is_divided, store=store, own_model=own_model, shadow=shadow)
    layout.copy_serving_files(build.tree, files)
