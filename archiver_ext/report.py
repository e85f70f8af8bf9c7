"""Report of packaging: a table for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from ..config.manifest import Manifest
from .evaluation.candidate import CandidateResult
from .evaluation.selection import MARGIN
from .own_model.package import OwnModelResult
from .package import PackagingResult
from .report_parts import PYTHON, busy_line, cost_lines, machine, make_table, print_lines, software


def print_result(outcome: PackagingResult | OwnModelResult, console: Console) -> None:
    """Print the variants of every engine, the effect of padding, and the selected engine with the reason."""
    if isinstance(outcome, OwnModelResult):
        print_lines(console, *_own_remarks(outcome))
        return
    console.print(_table(outcome))
    print_lines(console, *_remarks(outcome))


def _table(outcome: PackagingResult) -> Table:
    trials = (outcome.selected, *outcome.others)
    estimated = any(trial.estimates for trial in trials)
    padded = any(trial.padding for trial in trials)
    # Headings of two lines leave a terminal of 80 columns the room for the longest name of an engine.
    numbers = (
        *("compile\ns", "size", "max\nerror", "measured\nms"),
        *["padded\nms"] * padded,
        *["estimate\nus"] * estimated,
    )
    table = make_table("bucket", "backend", numbers=numbers)
    for trial in trials:
        for *row, padding_cost, estimate in _rows(trial):
            cells = (*row, *[padding_cost] * padded, *[estimate] * estimated)
            table.add_row(*cells, style=None if trial is outcome.selected else "dim")
        table.add_section()
    return table


def _rows(trial: CandidateResult) -> Iterator[tuple[str, ...]]:
    """One row per bucket; a program for every bucket shows its compilation in the first row only."""
    milliseconds, padding, precision = trial.milliseconds, trial.padding, trial.manifest.precision
    own = {compiled.job.bucket: compiled for compiled in trial.compiled if compiled.job.part in ("sequence", "chunk")}
    for index, bucket in enumerate(trial.manifest.grid.buckets):
        compiled = own.get(bucket) or (own.get(None) if index == 0 else None)
        yield (
            f"{bucket.batch} x {bucket.length}",
            trial.backend if precision == "float32" else f"{trial.backend} {precision}",
            *(('"', '"') if compiled is None else (f"{compiled.seconds:.1f}", human_size(compiled.size))),
            f"{trial.verified[bucket].max_error:.1e}",
            f"{milliseconds.of(bucket):.3f}" if trial.simulation is None else "emulated",
            "" if padding is None else f"{padding.of(bucket):.3f}",
            f"{trial.estimates[bucket]:.2f}" if bucket in trial.estimates else "",
        )


def human_size(size: int) -> str:
    """Format a number of bytes for people.

    >>> human_size(153_600), human_size(9_437_184), human_size(2**30)
    ('150 KB', '9.0 MB', '1.0 GB')
    """
    if size < 1024**2:
        return f"{size / 1024:.0f} KB"
    return f"{size / 1024**2:.1f} MB" if size < 1024**3 else f"{size / 1024**3:.1f} GB"


def _remarks(outcome: PackagingResult) -> Iterator[str]:
    yield from outcome.notes
    selected, manifest = outcome.selected, outcome.selected.manifest
    allowed = f"{manifest.tolerance.atol:g} + {manifest.tolerance.rtol:g} x |eager|"
    yield f"verified: every output is within {allowed} of the model in eager mode, each request alone"
    yield _padding(manifest)
    if manifest.shadow is not None:
        yield f"a share of {manifest.shadow.share:g} of the answers is compared with the model's own code (shadow)"
    yield f"runs as {manifest.kind}: {manifest.kind_reason}"
    for rejected in outcome.rejected:
        yield f"{rejected.backend} was rejected: {rejected.reason}"
    yield _selected(outcome)
    yield from cost_lines(selected.backend, manifest.measurement, bool(manifest.padding_costs), outcome.cpu_operators)
    yield from busy_line(manifest.measurement)
    yield _precision(outcome)
    if selected.simulation is not None:
        by = "its compiler's estimates" if selected.estimates else "their timesteps"
        yield (
            f"{selected.backend} was {selected.simulation}; batches are planned by {by}, until "
            f"`neuron-lstm calibrate` measures them on a host with the device"
        )
    yield f"runs on {software(manifest.requires, manifest.host)}; {machine(manifest.host, selected.backend)}"
    yield f"{outcome.archive}: {human_size(outcome.size)}"


def _padding(manifest: Manifest) -> str:
    served = "requests are padded to the next larger bucket, and each is answered as alone"
    if manifest.short is not None:
        served += (
            f". The model's own code answers requests of fewer than {manifest.shortest} timesteps, because it does "
            f"something else with them{'; it draws random numbers' if manifest.short.model.draws else ''}"
        )
    if manifest.shortest_accepted == 1:
        return served
    return (
        f"{served}. Requests of fewer than {manifest.shortest_accepted} timesteps are refused: the model fails on "
        "them, or branches on their number of timesteps"
    )


def _selected(outcome: PackagingResult) -> str:
    selected = outcome.selected
    if not outcome.others:
        return f"{selected.backend} is packaged"
    others = ", ".join(f"{other.backend} {other.total_ms:.2f} ms" for other in outcome.others)
    total = f"{selected.total_ms:.2f} ms for one batch of each size, with evenly spread lengths"
    is_fastest = all(selected.total_ms <= other.total_ms for other in outcome.others)
    rank = "the fastest" if is_fastest else f"since no other saves more than {MARGIN:.0%}"
    return f"{selected.backend} is packaged, {rank}: {total}; {others}"


def _precision(outcome: PackagingResult) -> str:
    """The precision of the outputs; with the reason, if it is higher than the requested one."""
    precision, requested = outcome.selected.manifest.precision, outcome.precision
    computes = f"precision: {outcome.selected.backend} computes in {precision}"
    if beyond := outcome.selected.beyond:
        computes += f"; its tolerance does not hold for inputs {', '.join(beyond)}"
    if precision == requested:
        return computes
    slower = [other.backend for other in outcome.others if other.manifest.precision == requested]
    reason = f"faster than {' and '.join(slower)} in {requested}" if slower else f"no engine in {requested} is left"
    return f"{computes}, although {requested} is allowed: {reason}"


def to_json(outcome: PackagingResult | OwnModelResult) -> dict[str, Any]:
    """Return the report for machines.

    Sizes are in bytes, `compile_s` is in seconds, and `milliseconds` are those of one call of the full bucket;
    `padding_milliseconds` those of one with as much padding as possible, where that was measured apart. `notes`
    are there if the user's files left a choice. `python` and the versions in `requires` are the lowest that run it.
    `engines` were measured, and `dropped` failed.
    """
    return _own_json(outcome) if isinstance(outcome, OwnModelResult) else _lowered_json(outcome)


def _lowered_json(outcome: PackagingResult) -> dict[str, Any]:
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
                "milliseconds": milliseconds.of(bucket),
                "padding_milliseconds": None if padding is None else padding.of(bucket),
                "estimate_us": trial.estimates.get(bucket),
            }
            for bucket in trial.manifest.grid.buckets
        ],
    }


def _served_itself(outcome: OwnModelResult) -> str:
    """Say that the model itself answers, why, and what would make it fast."""
    model = outcome.model
    if model.reason == "`lowering: off`":
        return f"{model.name} is served by its own code in eager mode, because of {model.reason}: leave that out"
    return (
        f"{model.name} is served by its own code in eager mode, each request alone, because it cannot be lowered: "
        f"{model.reason}"
    )


def _own_remarks(outcome: OwnModelResult) -> Iterator[str]:
    """Say first that the model itself answers, and why."""
    manifest, model = outcome.manifest, outcome.model
    yield _served_itself(outcome)
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
    for cost in manifest.costs:
        yield f"a request of {cost.bucket.length} timesteps takes {cost.milliseconds:.3f} ms"
    yield from cost_lines(manifest.backend, manifest.measurement, padded=False, cpu_operators=())
    yield from busy_line(manifest.measurement)
    needs = ", ".join(f"{need.distribution} {need.version} or later" for need in manifest.requires)
    yield f"packaged with Python {outcome.python}; a host needs {needs}"
    yield f"{outcome.archive}: {human_size(outcome.size)}"


def _own_json(outcome: OwnModelResult) -> dict[str, Any]:
    manifest, model = outcome.manifest, outcome.model
    return {
        "archive": str(outcome.archive),
        "size": outcome.size,
        "backend": manifest.backend,
        "own_model": {"name": model.name, "reason": model.reason, "draws": model.draws, "state": list(outcome.state)},
        "python": outcome.python,
        "requires": [need._asdict() for need in manifest.requires],
        "costs": [{"length": cost.bucket.length, "milliseconds": cost.milliseconds} for cost in manifest.costs],
        **({"notes": list(outcome.notes)} if outcome.notes else {}),
    }
