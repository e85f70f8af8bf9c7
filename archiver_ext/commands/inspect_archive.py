"""What an archive says of itself: its manifest, out of any of the archive formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from .step_times import StepTime


def print_manifest(manifest: Mapping[str, Any], console: Console, times: Sequence[StepTime] = ()) -> None:
    """Print the manifest of an archive as people read it, and what a stream's next timestep costs."""
    errors = {_shape(check["bucket"]): f"{check['max_error']:.1e}" for check in manifest["checks"]}
    main = manifest["kind"]
    table = Table("program", "bucket", highlight=False)
    table.add_column("measured ms", justify="right")
    table.add_column("us a step", justify="right")
    table.add_column("max error", justify="right")
    estimates = _estimates(manifest)
    if estimates:
        table.add_column("estimate us", justify="right")
    for cost in manifest["costs"]:
        shape, milliseconds = _shape(cost["bucket"]), cost["milliseconds"]
        estimate = estimates.get((cost["part"], shape))
        per_step = f"{1000 * milliseconds / cost['bucket']['length']:.1f}"
        error = errors.pop(shape, "") if cost["part"] == main else ""
        # Where the device was simulated, the costs are the estimates themselves.
        measured = "" if estimate is not None and estimate / 1000 == milliseconds else f"{milliseconds:.3f}"
        told = [] if estimate is None else [f"{estimate:.2f}"]
        table.add_row(cost["part"], shape, measured, per_step, error, *told)
    for shape, error in errors.items():
        table.add_row(main, shape, "", "", error)
    for line in _facts(manifest):
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(table)
    if times:
        console.print(_table_of(times))


def _estimates(manifest: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Microseconds of programs on their device, by the compiler's count."""
    return {
        (variant["part"], _shape(variant["bucket"])): variant["estimate_us"]
        for variant in manifest["variants"]
        if variant.get("estimate_us") is not None and variant["bucket"] is not None
    }


def _table_of(times: Sequence[StepTime]) -> Table:
    """A stream's next timestep, beside a whole sequence of the largest bucket's length."""
    table = Table("sessions at once", highlight=False)
    table.add_column("one step ms", justify="right")
    table.add_column(f"{times[0].whole_timesteps} steps at once ms", justify="right")
    for time in times:
        table.add_row(str(time.sessions), f"{time.step_ms:.3f}", f"{time.whole_ms:.3f}")
    return table


def _shape(bucket: Mapping[str, int]) -> str:
    return f"{bucket['batch']} x {bucket['length']}"


def _facts(manifest: Mapping[str, Any]) -> list[str]:
    needs = ", ".join(f"{need['distribution']} {need['version']}" for need in manifest["requires"])
    made = ", ".join(f"{name} {version}" for name, version in manifest["produced_by"].items())
    host = ", ".join(f"{name} {value}" for name, value in manifest["host"].items()) or "any machine"
    return [
        f"engine      {manifest['backend']}",
        f"precision   {manifest['precision']}, within {_allowed(manifest['tolerance'])} of the model in eager mode",
        f"host needs  {needs or 'nothing besides torch'}",
        f"host is     {host}",
        *(f"input       {_layout(spec)}" for spec in manifest["inputs"]),
        *(f"output      {_layout(spec)}" for spec in manifest["outputs"]),
        f"padding     {manifest['padding']}: {manifest['padding_reason']}",
        f"runs as     {manifest['kind']}: {manifest['kind_reason']}",
        *(f"carried     {_layout(value['spec'])}" for value in manifest["carried"]),
        f"shapes      {'any' if manifest['shapes'] == 'any' else 'the buckets'}, up to {manifest['longest']} timesteps",
        f"overflow    {manifest['overflow']}",
        *([f"kernel      {manifest['kernel']} chooses each sequence's length"] if manifest.get("kernel") else []),
        *(["placement   each worker keeps to cores of its own"] if manifest.get("placement") else []),
        *_streaming(manifest.get("streaming")),
        f"made by     {made}",
    ]


def _streaming(settings: Mapping[str, Any] | None) -> list[str]:
    if settings is None:
        return []
    kept = {"disk": "on the host's disk", "redis": "on a server", "client": "by the client"}[settings["store"]]
    return [f"streams     sessions are kept {kept}; state {settings['state']}"]


def _allowed(tolerance: Mapping[str, float]) -> str:
    return f"{tolerance['atol']:g} + {tolerance['rtol']:g} x |eager|"


def _layout(spec: Mapping[str, Any]) -> str:
    return f"{spec['name']}: {spec['dtype']}[{', '.join(map(str, spec['shape']))}]"
