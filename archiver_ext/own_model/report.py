"""Report of packaging a model that answers by its own code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from ..commands import print_json
from ..report import human_size
from ..report_parts import busy_line, cost_lines, print_lines
from .package import OwnModelResult


def print_result(outcome: OwnModelResult, console: Console, *, as_json: bool) -> None:
    """Print the report: first that the model itself answers, and why."""
    if as_json:
        print_json(to_json(outcome))
    else:
        print_lines(console, *_lines(outcome))


def served_itself(outcome: OwnModelResult) -> str:
    """Say that the model itself answers, why, and what would make it fast."""
    model = outcome.model
    if model.reason == "`lowering: off`":
        return f"{model.name} is served by its own code in eager mode, because of {model.reason}: leave that out"
    return (
        f"{model.name} is served by its own code in eager mode, each request alone, because it cannot be lowered: "
        f"{model.reason}"
    )


def _lines(outcome: OwnModelResult) -> Iterator[str]:
    manifest, model = outcome.manifest, outcome.model
    yield served_itself(outcome)
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


def to_json(outcome: OwnModelResult) -> dict[str, Any]:
    """Return the report for machines: sizes in bytes, milliseconds of one request."""
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
