"""Trials of the candidates for one archive: compiled, verified and measured, quick ones first.

An engine that compiles each bucket slowly is compiled only if it could win by the time of the operators that its
programs call: first for two buckets, then for all of them if it could win by what was measured there. If no other
engine serves the model, or the YAML names it, it is compiled for all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ...bucketing.shapes import Bucket, BucketGrid
from ...config.engine_choice import AUTO
from ...config.manifest import ManifestError
from ..errors import PackagingError
from ..progress import show_progress
from . import engine_tree
from .candidate import Candidate, CandidateResult, RejectedEngine, check_max_length
from .candidate_compiler import CandidateCompiler, Compiled
from .compared_batches import expected_total_ms
from .earlier_comparison import ComparisonCache, EarlierComparison, clearly_slower
from .engine_error import is_engine_error
from .engine_times import EngineTimes, measure_together, with_total
from .evaluate import EvaluatedEngine, LoadedEngine, evaluate_engine, load_bucket
from .expensive_engines import could_win, first_buckets
from .lower_bounds import least_total_ms, lower_bound_calls
from .manifest_builder import BuildInput
from .omitted_engine import OmittedEngine, bounded, out_of_time, too_slow
from .selection import fallback_engines, is_quick
from .tolerance_exceeded import ToleranceExceeded
from .verification_cases import VerificationCase


@dataclass(frozen=True)
class TrialResults:
    """The engines that may be selected, and the others."""

    measured: tuple[CandidateResult, ...]
    rejected: tuple[RejectedEngine, ...]
    omitted: tuple[OmittedEngine, ...]


@dataclass(frozen=True)
class _Outcome:
    """Results of some trials; they add up."""

    evaluated: tuple[EvaluatedEngine, ...] = ()
    failed: tuple[RejectedEngine, ...] = ()
    """Engines that compiled the model and then failed."""
    refused: tuple[RejectedEngine, ...] = ()
    """Engines that did not compile the model."""
    omitted: tuple[OmittedEngine, ...] = ()
    comparison: EngineTimes | None = None
    """The last comparison."""

    def __add__(self, other: _Outcome) -> _Outcome:
        return _Outcome(
            self.evaluated + other.evaluated,
            self.failed + other.failed,
            self.refused + other.refused,
            self.omitted + other.omitted,
            other.comparison or self.comparison,
        )


@dataclass(frozen=True)
class Trials:
    """The trials for one archive, in the archive's own tree."""

    build: BuildInput
    compiler: CandidateCompiler
    cases: Sequence[VerificationCase]
    """Requests with their outputs in eager mode."""
    console: Console
    until: float | None
    """The time of the monotonic clock after which no program of a slowly compiling engine is begun."""
    cache: ComparisonCache | None = None
    """The place of an earlier comparison of the same candidates."""

    def run(self, candidates: Sequence[Candidate]) -> TrialResults:
        """Evaluate each candidate. Under `auto` an engine that fails is rejected; otherwise packaging fails.

        Raises:
            PackagingError: no engine is left.
        """
        slower = self._lost_earlier(candidates)
        names = {one.backend for one in slower}
        outcome = self._try_all([one for one in candidates if one.backend not in names])
        if not outcome.evaluated and slower:  # other weights: the faster ones are not exact enough any more
            outcome += self._try_all([one for one in candidates if one.backend in names])
            slower = ()
        if not outcome.evaluated and not outcome.failed:
            tried = [candidate.backend for candidate in candidates]
            fallback = [self.compiler.plain_candidate(one) for one in fallback_engines(self.build.config, tried)]
            outcome += self._try_all(fallback)
        rejected = outcome.refused + outcome.failed
        if not outcome.evaluated:
            raise PackagingError("\n".join(rejection.reason for rejection in rejected))
        omitted = (*slower, *outcome.omitted)
        compared = _compared(outcome)
        if compared is None:
            return TrialResults(tuple(one.result for one in outcome.evaluated), rejected, omitted)
        if self.cache is not None and not slower:
            self._write_comparison(self.cache, compared, outcome.omitted)
        measured = tuple(with_total(one.result, compared.totals) for one in outcome.evaluated)
        return TrialResults(measured, rejected, omitted)

    def _lost_earlier(self, candidates: Sequence[Candidate]) -> tuple[OmittedEngine, ...]:
        """The candidates that clearly lost an earlier comparison."""
        earlier = None if self.cache is None else self.cache.read()
        return () if earlier is None else clearly_slower(earlier, [one.backend for one in candidates])

    def _write_comparison(
        self, cache: ComparisonCache, compared: EngineTimes, omitted: Sequence[OmittedEngine]
    ) -> None:
        """Write a comparison for later packagings; an omitted engine with the time that it cannot undercut.

        Such a time was not measured: below the fastest measured one, it would be read as that of the fastest engine.
        """
        least = min(compared.totals.values())
        expected = {one.backend: max(one.expected_ms, least) for one in omitted if one.expected_ms is not None}
        if len(compared.totals) + len(expected) > 1:
            cache.write(EarlierComparison({**compared.totals, **expected}, compared.undisturbed))

    def _try_all(self, candidates: Sequence[Candidate]) -> _Outcome:
        """Try the candidates that fit the configuration, those that compile quickly first."""
        rejections = [check_max_length(candidate, self.build.config) for candidate in candidates]
        fitting = [one for one, rejection in zip(candidates, rejections, strict=True) if rejection is None]
        outcome = _Outcome(refused=tuple(rejection for rejection in rejections if rejection is not None))
        outcome += self._compile_and_evaluate([candidate for candidate in fitting if is_quick(candidate.engine)])
        for candidate in fitting:
            if not is_quick(candidate.engine):
                outcome += self._try_slow_compiler(candidate, outcome.evaluated)
        return outcome

    def _try_slow_compiler(self, candidate: Candidate, others: Sequence[EvaluatedEngine]) -> _Outcome:
        """Try an engine that compiles each bucket slowly, beside those that were evaluated before."""
        if not others:
            return self._compile_and_evaluate([candidate])
        if self.build.config.engine != AUTO or self.build.config.auto.engines is not None:
            return self._compile_and_evaluate([candidate], until=self.until)
        return self._omit_by_lower_bound(candidate, others) or self._try_in_first_buckets(candidate, others)

    def _try_in_first_buckets(self, candidate: Candidate, others: Sequence[EvaluatedEngine]) -> _Outcome:
        """Compile a candidate for the first buckets, and for all of them if it could win by its times there."""
        grid = self.build.config.grid
        buckets = first_buckets(grid)
        if len(buckets) == len(grid.buckets):
            return self._compile_and_evaluate([candidate], until=self.until)
        # The program over whole sequences in place of those over chunks: one to compile for each bucket, not three.
        whole = replace(candidate, program=replace(candidate.program, chunked=None))
        compiler = replace(self.compiler, work=self.compiler.work / "trial")
        # Without sessions, which need the program over chunks: only its time is asked for.
        plain = replace(self.build, config=self.build.config.model_copy(update={"streaming": None}))
        single = [BucketGrid((bucket.batch,), (bucket.length,)) for bucket in buckets]
        compiled, refused = compiler.compile([whole], single, until=self.until)
        if refused:
            return _Outcome(refused=tuple(refused))
        if not compiled[0].is_complete:
            return _Outcome(omitted=(out_of_time(candidate.backend, self.build.config.auto.time),))
        loaded: dict[Bucket, LoadedEngine] = {}

        def load() -> None:
            for bucket in buckets:
                loaded[bucket] = load_bucket(plain, whole, bucket, self.cases)

        if (failed := self._run_in_tree(whole, load, compiler.work)) is not None:
            return _Outcome(failed=(failed,))
        compared = measure_together(others, {bucket: one.full_call(bucket) for bucket, one in loaded.items()})
        fastest, calls = compared.fastest, compared.calls
        expected = expected_total_ms(self.build, candidate, calls)
        if could_win(expected, compared.totals[fastest], undisturbed=compared.undisturbed):
            return self._compile_and_evaluate([candidate], until=self.until)
        omitted = too_slow(candidate.backend, calls, expected, fastest, compared.totals[fastest], len(grid.buckets))
        return _Outcome(omitted=(omitted,), comparison=compared)

    def _omit_by_lower_bound(self, candidate: Candidate, others: Sequence[EvaluatedEngine]) -> _Outcome | None:
        """Leave out an engine that cannot win by a lower bound of its time; None if it could, or has no bound."""
        manifest = others[0].loaded.archive.manifest
        calls = lower_bound_calls(candidate, manifest, first_buckets(manifest.grid), self.build.threads)
        if not calls:
            return None
        compared = measure_together(others, calls)
        least, fastest = least_total_ms(manifest, compared.calls), compared.fastest
        if could_win(least, compared.totals[fastest], undisturbed=compared.undisturbed):
            return None
        omitted = bounded(candidate.backend, compared.calls, least, fastest, compared.totals[fastest])
        return _Outcome(omitted=(omitted,), comparison=compared)

    def _compile_and_evaluate(self, candidates: Sequence[Candidate], until: float | None = None) -> _Outcome:
        """Compile candidates for every bucket, and evaluate them."""
        if not candidates:
            return _Outcome()
        compiled, refused = self.compiler.compile(candidates, [self.build.config.grid], until)
        outcome = _Outcome(refused=tuple(refused))
        for one in compiled:
            outcome += self._evaluate(one)
        return outcome

    def _evaluate(self, compiled: Compiled) -> _Outcome:
        if not compiled.is_complete:
            return _Outcome(omitted=(out_of_time(compiled.candidate.backend, self.build.config.auto.time),))
        evaluated: list[EvaluatedEngine] = []

        def run() -> None:
            with show_progress("verify", self.console, every_s=2.0) as report:
                programs = compiled.programs
                evaluated.append(evaluate_engine(self.build, compiled.candidate, programs, self.cases, report))

        failed = self._run_in_tree(compiled.candidate, run, self.compiler.work)
        return _Outcome(evaluated=tuple(evaluated)) if failed is None else _Outcome(failed=(failed,))

    def _run_in_tree(self, candidate: Candidate, run: Callable[[], None], work: Path) -> RejectedEngine | None:
        """Call `run` while the engine's programs, from below `work`, are in the tree; returns its failure."""
        name = candidate.backend
        engine_tree.install_engine(self.build, candidate.engine, work)
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
        engine_tree.remove_engine(self.build.tree, candidate.engine, work)
        return failed


def _compared(outcome: _Outcome) -> EngineTimes | None:
    """The comparison of all engines that were evaluated; None where there is nothing to compare."""
    found = outcome.comparison
    if found is not None and found.totals.keys() == {one.result.backend for one in outcome.evaluated}:
        return found
    return measure_together(outcome.evaluated) if len(outcome.evaluated) > 1 else None
