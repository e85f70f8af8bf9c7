"""Report of packaging: lines for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from ..config.manifest import Manifest
from .evaluation.candidate import CandidateResult
from .evaluation.selection import MARGIN
from .own_model.package import OwnModelResult
from .package import PackagingResult
from .report_parts import PYTHON, busy_line, cost_lines, machine, print_lines, software


def print_result(outcome: PackagingResult | OwnModelResult, console: Console) -> None:
    """Print what was packaged, what was verified, and how it is served; `neuron-lstm inspect` has the rest."""
    print_lines(console, *(_own_remarks(outcome) if isinstance(outcome, OwnModelResult) else _remarks(outcome)))


def human_size(size: int) -> str:
    """Format a number of bytes for people.

    >>> human_size(153_600), human_size(9_437_184), human_size(2**30)
    ('150 KB', '9.0 MB', '1.0 GB')
    """
    if size < 1024**2:
        return f"{size / 1024:.0f} KB"
    return f"{size / 1024**2:.1f} MB" if size < 1024**3 else f"{size / 1024**3:.1f} GB"


def _remarks(outcome: PackagingResult) -> Iterator[str]:
    selected, manifest = outcome.selected, outcome.selected.manifest
    yield _packaged(outcome)
    yield from outcome.notes
    allowed = f"{manifest.tolerance.atol:g} + {manifest.tolerance.rtol:g} x |eager|"
    yield f"verified: every output is within {allowed} of the model in eager mode, each request alone"
    yield _served(manifest)
    if manifest.shadow is not None:
        yield f"a share of {manifest.shadow.share:g} of the answers is compared with the model's own code (shadow)"
    if manifest.kind == "sequence":
        yield f"whole sequences are computed at once, without sessions: {manifest.kind_reason}"
    for rejected in outcome.rejected:
        yield f"{rejected.backend} was rejected: {rejected.reason}"
    yield from cost_lines(selected.backend, None, outcome.cpu_operators)
    yield from busy_line(manifest.measurement, {other.backend: other.manifest.measurement for other in outcome.others})
    yield from _precision(outcome)
    if selected.simulation is not None:
        by = "its compiler's estimates" if selected.estimates else "their timesteps"
        yield (
            f"{selected.backend} was {selected.simulation}; batches are planned by {by}, until "
            f"`neuron-lstm calibrate` measures them on a host with the device"
        )
    yield f"runs on {software(manifest.requires, manifest.host)}; {machine(manifest.host, selected.backend)}"
    yield f"serve it: neuron-lstm serve {outcome.archive}; more about it: neuron-lstm inspect {outcome.archive}"


def _packaged(outcome: PackagingResult) -> str:
    selected = outcome.selected
    packaged = f"{outcome.archive}: {human_size(outcome.size)}, {selected.backend} in {selected.manifest.precision}"
    if not outcome.others:
        return packaged
    others = ", ".join(f"{other.backend} {other.total_ms:.2f} ms" for other in outcome.others)
    is_fastest = all(selected.total_ms <= other.total_ms for other in outcome.others)
    rank = "the fastest" if is_fastest else f"since no other saves more than {MARGIN:.0%}"
    return f"{packaged}, {rank}: {selected.total_ms:.2f} ms for one batch of each size; {others}"


def _served(manifest: Manifest) -> str:
    how = "at their own length" if manifest.shapes == "any" else "padded to the next larger bucket"
    what = "requests" if manifest.streaming is None else "chunks of sessions"
    few = manifest.shortest_accepted
    served = f"{what} of {few} to {manifest.longest} timesteps are served, {how}"
    if manifest.short is not None:
        served += (
            f". The model's own code answers those of fewer than {manifest.shortest}, because it does something else "
            f"with them{'; it draws random numbers' if manifest.short.model.draws else ''}"
        )
    if few > 1:
        served += f". Requests of fewer than {few} timesteps are refused: the model fails on them, or branches on that"
    return served


def _precision(outcome: PackagingResult) -> Iterator[str]:
    """Say why the precision is higher than the requested one, and for which inputs its tolerance does not hold."""
    precision, requested = outcome.selected.manifest.precision, outcome.precision
    if beyond := outcome.selected.beyond:
        yield f"the tolerance of {precision} does not hold for inputs {', '.join(beyond)}"
    if precision != requested:
        slower = [other.backend for other in outcome.others if other.manifest.precision == requested]
        reason = f"faster than {' and '.join(slower)} in {requested}" if slower else f"no engine in {requested} is left"
        yield f"{precision} is used, although {requested} is allowed: {reason}"


def to_json(outcome: PackagingResult | OwnModelResult) -> dict[str, Any]:
    """Return the report for machines.

    Sizes are in bytes, `compile_s` is in seconds, and `milliseconds` are those of one call of the full bucket;
    `padding_milliseconds` those of one with as much padding as possible, where that was measured apart. `notes`
    are there if the user's files left a choice. `python` and the versions in `requires` are the lowest that run it.
    `engines` were measured, and `dropped` failed.
    """
    if isinstance(outcome, OwnModelResult):
        return _own_json(outcome)
    manifest = outcome.selected.manifest
    return {
        "archive": str(outcome.archive),
        "size": outcome.size,
        "backend": manifest.backend,
        "on_cpu": outcome.cpu_operators,
        "precision": manifest.precision,
        "simulation": outcome.selected.simulation,
        "runs_as": manifest.kind,
        "runs_reason": manifest.kind_reason,
        "python": PYTHON,
        "requires": [need._asdict() for need in manifest.requires],
        "host": manifest.host,
        "tolerance": manifest.tolerance._asdict(),
        "engines": [_engine(trial, outcome) for trial in (outcome.selected, *outcome.others)],
        **({"notes": list(outcome.notes)} if outcome.notes else {}),
        "dropped": [{"backend": rejected.backend, "reason": rejected.reason} for rejected in outcome.rejected],
    }


def _engine(trial: CandidateResult, outcome: PackagingResult) -> dict[str, Any]:
    milliseconds, padding, measurement = trial.milliseconds, trial.padding, trial.manifest.measurement
    return {
        "backend": trial.backend,
        "precision": trial.manifest.precision,
        "beyond_tolerance": list(trial.beyond),
        "kept": trial is outcome.selected,
        "total_ms": trial.total_ms,
        "threads": None if measurement is None else measurement.threads,
        "spread": None if measurement is None else measurement.spread,
        "programs": [
            {"part": one.job.part, "bucket": one.job.bucket, "compile_s": one.seconds, "size": one.size}
            for one in trial.compiled
        ],
        "variants": [
            {
                "bucket": bucket,
                "max_error": trial.verified[bucket].max_error,
                "worst_ratio": trial.verified[bucket].worst_ratio,
                "milliseconds": milliseconds.of(bucket),
                "padding_milliseconds": None if padding is None else padding.of(bucket),
                "estimate_us": trial.estimates.get(bucket),
            }
            for bucket in trial.manifest.grid.buckets
        ],
    }


def _own_remarks(outcome: OwnModelResult) -> Iterator[str]:
    """Say first that the model itself answers, and why."""
    manifest, model = outcome.manifest, outcome.model
    if model.reason == "`lowering: off`":
        yield f"{model.name} is served by its own code in eager mode, because of {model.reason}: leave that out"
    else:
        yield (
            f"{model.name} is served by its own code in eager mode, each request alone, because it cannot be lowered: "
            f"{model.reason}"
        )
    yield from outcome.notes
    yield (
        "a lowered model is compiled, and computes several requests in one call: change what the first line names, or "
        "write `lowering: required` to refuse this model instead"
    )
    if model.draws:
        yield "it draws random numbers: equal requests have different answers"
    elif model.recurrences is None:
        yield "verified: each answer equals the model's in every bit, in any order of the requests"
    else:
        error = max(check.max_error for check in manifest.checks)
        yield (
            "verified: each answer is the same in any order of the requests, and within atol "
            f"{manifest.tolerance[0]:g} and rtol {manifest.tolerance[1]:g} of the model's (largest difference "
            f"{error:.1e}), as the native engine computes recurrent layers; `backend: eager` leaves them to torch"
        )
    if outcome.state:
        yield f"requests change {', '.join(outcome.state)}, which is put back after each"
    for output in manifest.outputs:
        yield f"returns {output.name}: {output.dtype}[{', '.join(map(str, output.shape))}]"
    times = ", ".join(f"{cost.milliseconds:.3g} ms for {cost.bucket.length}" for cost in manifest.costs)
    yield f"a request takes, by its timesteps: {times}"
    yield from cost_lines(manifest.backend, manifest.measurement, ())
    yield from busy_line(manifest.measurement)
    needs = ", ".join(f"{need.distribution} {need.version} or later" for need in manifest.requires)
    yield f"packaged with Python {manifest.produced_by['python']}; a host needs {needs}"
    yield f"{outcome.archive}: {human_size(outcome.size)}"


def _own_json(outcome: OwnModelResult) -> dict[str, Any]:
    manifest, model = outcome.manifest, outcome.model
    return {
        "archive": str(outcome.archive),
        "size": outcome.size,
        "backend": manifest.backend,
        "own_model": {"name": model.name, "reason": model.reason, "draws": model.draws, "state": list(outcome.state)},
        "python": manifest.produced_by["python"],
        "requires": [need._asdict() for need in manifest.requires],
        "costs": [{"length": cost.bucket.length, "milliseconds": cost.milliseconds} for cost in manifest.costs],
        **({"notes": list(outcome.notes)} if outcome.notes else {}),
    }
