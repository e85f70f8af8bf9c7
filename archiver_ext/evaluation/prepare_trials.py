"""Preparation of the trials: requests with their outputs in eager mode, and an earlier comparison."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...backends.interface import Backend
from ...config.schema import ServingConfig
from ..progress import show_progress
from .candidate_compiler import CandidateCompiler
from .earlier_comparison import ComparisonCache, comparison_key
from .manifest_builder import BuildInput
from .reference import make_reference
from .trials import Trials
from .verification_cases import VerificationCase, draw_cases


def prepare_trials(
    build: BuildInput,
    compiler: CandidateCompiler,
    model: torch.nn.Module,
    engines: Sequence[Backend],
    began: float,
) -> Trials:
    """Prepare the trials of `engines`.

    `began` is the time of the monotonic clock at which packaging began.
    """
    cases = _cases(model, compiler)
    cache = _comparison_cache(build, compiler, engines)
    return Trials(build, compiler, cases, compiler.console, _end_of(build.config, began), cache)


def _cases(model: torch.nn.Module, compiler: CandidateCompiler) -> tuple[VerificationCase, ...]:
    config, program = compiler.config, compiler.program
    reference = make_reference(model, config, program.outputs)
    with show_progress("reference", compiler.console, every_s=2.0) as report:
        return draw_cases(program, config.grid, reference, report, longest=config.longest)


def _comparison_cache(
    build: BuildInput, compiler: CandidateCompiler, engines: Sequence[Backend]
) -> ComparisonCache | None:
    key = None if compiler.cache is None else comparison_key(build, compiler.program, engines)
    return None if compiler.cache is None or key is None else ComparisonCache(compiler.cache, key, compiler.work)


def _end_of(config: ServingConfig, began: float) -> float | None:
    """The time of the monotonic clock at which the YAML's bound for compilations ends."""
    return None if config.auto.time is None else began + config.auto.time
