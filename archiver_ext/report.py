"""What packaging tells at the end: a table for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..backends.compile_pool import CompileResult
from ..bucketing.shapes import Bucket
from .evaluation.selection import CandidateResult
from .package import PackagingResult


def print_result(outcome: PackagingResult, console: Console) -> None:
    """Print what was packaged: every engine's variants, what padding does, which engine is kept and why."""
    console.print(_table(outcome))
    for line in _remarks(outcome):
        console.print(escape(line), highlight=False, soft_wrap=True)


def _table(outcome: PackagingResult) -> Table:
    table = Table("bucket", "backend", highlight=False)
    trials = (outcome.selected, *outcome.others)
    estimated = any(trial.estimates for trial in trials)
    for heading in ("compile s", "size", "max error", "measured ms", *["estimate us"] * estimated):
        table.add_column(heading, justify="right")
    for trial in trials:
        for row in _rows(trial, outcome.config.grid.buckets):
            table.add_row(*row[: len(table.columns)], style=None if trial is outcome.selected else "dim")
        table.add_section()
    return table


def _rows(trial: CandidateResult, buckets: tuple[Bucket, ...]) -> Iterator[tuple[str, ...]]:
    """One row a bucket; a program that serves every bucket shows what it took in the first row only."""
    own = {compiled.job.bucket: compiled for compiled in trial.compiled if compiled.job.part in ("sequence", "chunk")}
    for index, bucket in enumerate(buckets):
        compiled = own.get(bucket) or (own.get(None) if index == 0 else None)
        yield (
            f"{bucket.batch} x {bucket.length}",
            trial.backend if trial.precision == "float32" else f"{trial.backend} {trial.precision}",
            *_cost(compiled),
            f"{trial.verified[bucket].max_error:.1e}",
            f"{trial.milliseconds[bucket]:.3f}" if trial.simulation is None else "emulated",
            f"{trial.estimates[bucket]:.2f}" if bucket in trial.estimates else "",
        )


def _cost(compiled: CompileResult | None) -> tuple[str, str]:
    return ('"', '"') if compiled is None else (f"{compiled.seconds:.1f}", human_size(compiled.size))


def human_size(size: int) -> str:
    """Bytes as people read them.

    >>> human_size(153_600), human_size(9_437_184), human_size(2**30)
    ('150 KB', '9.0 MB', '1.0 GB')
    """
    if size < 1024**2:
        return f"{size / 1024:.0f} KB"
    return f"{size / 1024**2:.1f} MB" if size < 1024**3 else f"{size / 1024**3:.1f} GB"


def _remarks(outcome: PackagingResult) -> Iterator[str]:
    tolerance = outcome.config.tolerance
    allowed = f"{tolerance.atol:g} + {tolerance.rtol:g} x |eager|"
    yield f"every answer is within {allowed} of the model in eager mode, each request alone"
    yield _padding(outcome)
    yield f"runs as {_kind(outcome)}: {outcome.program.chunking_reason}"
    for rejected in outcome.rejected:
        yield f"{rejected.backend} was rejected: {rejected.reason}"
    yield _kept(outcome)
    if outcome.cpu_operators:
        yield f"on the CPU beside {outcome.selected.backend}: {', '.join(outcome.cpu_operators)}"
    yield _precision(outcome)
    if outcome.selected.simulation is not None:
        by = "its compiler's estimates" if outcome.selected.estimates else "their timesteps"
        yield (
            f"{outcome.selected.backend} was {outcome.selected.simulation}; batches are planned by {by}, until "
            f"`neuron-lstm calibrate` has measured them where the device is"
        )
    yield f"{outcome.archive}: {human_size(outcome.size)}"


def _kind(outcome: PackagingResult) -> str:
    return "sequence" if outcome.program.chunked is None else "chunk"


def _padding(outcome: PackagingResult) -> str:
    served = "requests are padded to the next bucket"
    if outcome.program.padding == "exact_lengths":
        lengths = ", ".join(map(str, outcome.config.grid.lengths))
        served = f"sequences of {lengths} timesteps are served"
    return f"{served}: {outcome.program.padding_reason}"


def _kept(outcome: PackagingResult) -> str:
    kept = outcome.selected
    if not outcome.others:
        return f"{kept.backend} is packaged"
    rivals = "".join(f", {other.backend} {other.total_ms:.2f}" for other in outcome.others)
    spent = f"{kept.total_ms:.2f} ms{rivals}"
    return f"{kept.backend} is packaged (the fastest with batches of every size, lengths spread evenly: {spent})"


def _precision(outcome: PackagingResult) -> str:
    """What answers are computed in, and where that is more than was asked for, why."""
    kept, asked = outcome.selected, outcome.config.precision
    computes = f"precision: {kept.backend} computes in {kept.precision}"
    if kept.precision == asked:
        return computes
    rivals = [other.backend for other in outcome.others if other.precision == asked]
    why = f"faster than {' and '.join(rivals)} in {asked}" if rivals else f"no engine in {asked} is left"
    return f"{computes}, although {asked} is allowed: {why}"


def to_json(outcome: PackagingResult) -> dict[str, Any]:
    """The same for machines: sizes in bytes, `compile_s` in seconds, `milliseconds` of one run of the full bucket."""
    return {
        "archive": str(outcome.archive),
        "size": outcome.size,
        "backend": outcome.selected.backend,
        "on_cpu": outcome.cpu_operators,
        "precision": outcome.selected.precision,
        "simulation": outcome.selected.simulation,
        "padding": outcome.program.padding,
        "padding_reason": outcome.program.padding_reason,
        "runs_as": _kind(outcome),
        "runs_reason": outcome.program.chunking_reason,
        "tolerance": {"atol": outcome.config.tolerance.atol, "rtol": outcome.config.tolerance.rtol},
        "engines": [_engine(trial, outcome) for trial in (outcome.selected, *outcome.others)],
        "dropped": [{"backend": rejected.backend, "reason": rejected.reason} for rejected in outcome.rejected],
    }


def _engine(trial: CandidateResult, outcome: PackagingResult) -> dict[str, Any]:
    return {
        "backend": trial.backend,
        "precision": trial.precision,
        "kept": trial is outcome.selected,
        "total_ms": trial.total_ms,
        "programs": [
            {
                "part": compiled.job.part,
                "bucket": compiled.job.bucket,
                "compile_s": compiled.seconds,
                "size": compiled.size,
            }
            for compiled in trial.compiled
        ],
        "variants": [
            {
                "bucket": bucket,
                "max_error": trial.verified[bucket].max_error,
                "worst_ratio": trial.verified[bucket].worst_ratio,
                "milliseconds": trial.milliseconds[bucket],
                "estimate_us": trial.estimates.get(bucket),
            }
            for bucket in outcome.config.grid.buckets
        ],
    }
