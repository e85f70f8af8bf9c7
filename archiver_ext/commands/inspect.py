"""`neuron-lstm inspect`: the contents of an archive, from its manifest."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...inference.errors import ArchiveError, NamelessArchiveError
from ..report_parts import busy_line, cost_lines, cpu_operators, machine, make_table, one_line, print_lines, software
from . import Commands, add_archive, show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ...bucketing.shapes import Bucket, TensorSpec
    from ...config.manifest import Manifest
    from ...inference.reader import ArchiveReader


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "inspect",
        help="show the contents of an archive",
        description="Show an archive's inputs, outputs, programs and measured costs, and the hosts that it runs on.",
    )
    add_archive(command)
    command.add_argument(
        "--json", action="store_true", help="print the manifest, with on_cpu if operators run on the CPU"
    )
    command.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    from ...inference.reader import ArchiveReader

    reader = ArchiveReader(options.archive)
    text = reader.manifest_json()
    try:
        manifest = reader.manifest()
    except ArchiveError:
        if not options.json:
            raise
        sys.stdout.write(_shown(text))  # that of another version too
        return
    on_cpu = cpu_operators(manifest, reader)
    if options.json and not on_cpu:
        sys.stdout.write(_shown(text))
        return
    called = _called(reader)

    def print_all(console: Console) -> None:
        print_lines(console, f"model       {called}")
        print_manifest(manifest, console, on_cpu)

    show(options, lambda: {**json.loads(text), "on_cpu": on_cpu}, print_all)


def _shown(text: str) -> str:
    """Return JSON that has the same value, and in which a terminal obeys and hides nothing."""
    lines = text.replace("\r", "\n")  # it can be between values only
    return "".join(sign if sign.isprintable() or sign in "\n\t" else json.dumps(sign)[1:-1] for sign in lines)


def _called(reader: ArchiveReader) -> str:
    """The name and the version by which a server knows the model."""
    try:
        name = reader.model_name()
    except NamelessArchiveError:
        return "without a name: it cannot be served; package it again, with --model-name"
    version = reader.model_version()
    return f"{name}, version {version}" if version else name


def print_manifest(manifest: Manifest, console: Console, on_cpu: Sequence[str] = ()) -> None:
    """Print the manifest of an archive, and the operators that run on the CPU, for people."""
    remarks = cost_lines(manifest.backend, manifest.measurement, on_cpu)
    print_lines(console, *map(one_line, _facts(manifest)), *remarks, *busy_line(manifest.measurement))
    console.print(_table_of_programs(manifest))


def _table_of_programs(manifest: Manifest) -> Table:
    """One row for each measured bucket of a program, and one for each that was verified only."""
    errors = {check.bucket: f"{check.max_error:.1e}" for check in manifest.checks}
    estimates = {
        (variant.part, variant.bucket): variant.estimate_us
        for variant in manifest.variants
        if variant.estimate_us is not None and variant.bucket is not None
    }
    numbers = (*("measured ms", "us / timestep"), "max error", *(["estimate us"] if estimates else []))
    table = make_table("program", "bucket", numbers=numbers)
    for cost in manifest.costs:
        key, milliseconds = (cost.part, cost.bucket), cost.milliseconds
        estimate = estimates.get(key)
        per_step = f"{1000 * milliseconds / cost.bucket.length:.1f}"
        error = errors.pop(cost.bucket, "") if cost.part == manifest.kind else ""
        # Where the device was simulated, the costs are the estimates themselves.
        measured = "" if estimate is not None and estimate / 1000 == milliseconds else f"{milliseconds:.3f}"
        estimated = [] if estimate is None else [f"{estimate:.2f}"]
        table.add_row(cost.part, _shape(cost.bucket), measured, per_step, error, *estimated)
    for bucket, error in errors.items():
        table.add_row(manifest.kind, _shape(bucket), "", "", error)
    return table


def _shape(bucket: Bucket) -> str:
    return f"{bucket.batch} x {bucket.length}"


def _facts(manifest: Manifest) -> Iterator[str]:
    if (model := manifest.model) is not None:
        answers = f"{model.name} of {model.file} answers by its own code, each request alone: {model.reason}"
        yield f"not lowered {answers}{'; it draws random numbers' if model.draws else ''}"
    yield f"engine      {manifest.backend}"
    allowed = f"{manifest.tolerance.atol:g} + {manifest.tolerance.rtol:g} x |eager|"
    yield f"precision   {manifest.precision}, within {allowed} of the model in eager mode"
    yield f"host needs  {software(manifest.requires, manifest.host)}"
    yield f"host is     {machine(manifest.host, manifest.backend)}"
    yield from (f"input       {_layout(spec)}" for spec in manifest.inputs)
    yield from (f"output      {_layout(spec)}" for spec in manifest.outputs)
    if manifest.codec:
        yield f"codec       {manifest.codec} reads requests and writes responses"
    yield "padding     exact by construction: each request is answered as alone"
    yield f"runs as     {manifest.kind}: {manifest.kind_reason}"
    yield from (f"carry       {_layout(value.spec)}" for value in manifest.carried)
    yield f"shapes      {'any' if manifest.shapes == 'any' else 'the buckets'}, up to {manifest.longest} timesteps"
    yield f"overflow    {manifest.overflow}"
    if manifest.kernel:
        yield f"selector    {manifest.kernel} selects the bucket of each sequence"
    if manifest.placement:
        yield "placement   each worker is pinned to its own cores"
    if (short := manifest.short) is not None:
        yield f"short       fewer than {manifest.shortest} timesteps are answered by {short.model.file}'s own code"
    if (shadow := manifest.shadow) is not None:
        then = ", which answers after the first difference" if shadow.on_difference == "model" else ""
        yield f"shadow      a share of {shadow.share:g} is compared with {shadow.model.file}'s own code{then}"
    if (settings := manifest.streaming) is not None:
        kept = {"disk": "on the host's disk", "redis": "on a server", "client": "by the client"}[settings.store]
        yield f"streams     sessions are kept {kept}; state {settings.state}"
    yield f"made by     {', '.join(f'{name} {version}' for name, version in manifest.produced_by.items())}"


def _layout(spec: TensorSpec) -> str:
    accepted = "" if spec.value_range is None else " from {:g} to {:g}".format(*spec.value_range)
    return f"{spec.name}: {spec.dtype}[{', '.join(map(str, spec.shape))}]{accepted}"
