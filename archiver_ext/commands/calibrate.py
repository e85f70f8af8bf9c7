"""`neuron-lstm calibrate`: the costs of an archive's programs, measured on the host that serves it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..errors import PackagingError
from ..report_parts import busy_line, cost_lines, cpu_operators, make_table, print_lines
from . import Commands, add_archive, add_archive_output, positive, show, tell_unsigned

if TYPE_CHECKING:
    from rich.console import Console

    from ...config.manifest import Manifest, MeasuredCost
    from ...handlers.runtime.loader import LoadedArchive

    _Pairs = list[tuple[MeasuredCost, float | None]]


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "calibrate",
        help="measure an archive's programs on this host, to plan batches by these costs",
        description="Measure an archive's programs on this host, and write the milliseconds into the archive. A server "
        "plans its batches by them. Run it on the serving host while nothing else runs there.",
    )
    add_archive(command)
    add_archive_output(command)
    command.add_argument(
        "--threads", type=positive, help="threads of one worker (default: as configured, or else cores / maxWorkers)"
    )
    command.add_argument("--json", action="store_true", help="print the measurements as JSON")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ...config.manifest_writer import manifest_text
    from ...inference.open_archive import open_archive
    from ...inference.reader import ArchiveReader
    from ..archive.writer import rewrite_manifest
    from ..torch_threads import worker_threads

    progress = Console(stderr=True)
    reader = ArchiveReader(options.archive)
    read = reader.file_list()
    with open_archive(options.archive, options.threads or worker_threads(options.archive)) as model:
        before, after = _measure(model.loaded, progress)
        on_cpu = cpu_operators(after, reader)
    output = options.output or options.archive
    if rewrite_manifest(options.archive, manifest_text(after), output, read):
        tell_unsigned(output)
    print_lines(progress, *busy_line(after.measurement))
    known = {(cost.part, cost.bucket): cost.milliseconds for cost in before.costs}
    pairs = [(cost, known.get((cost.part, cost.bucket))) for cost in after.costs]
    show(options, lambda: _to_json(pairs, after, on_cpu), lambda console: _print(pairs, after, on_cpu, output, console))


def _measure(loaded: LoadedArchive, console: Console) -> tuple[Manifest, Manifest]:
    """Return the manifest as it is, and with this host's milliseconds.

    Raises `PackagingError`: the device is emulated, or the model's own code answers and fails on padding.
    """
    from ...backends.registry import get_backend
    from ..evaluation.measured_costs import measure_costs, with_costs
    from ..progress import show_progress

    before = loaded.manifest
    if (simulation := get_backend(before.backend).simulation()) is not None:
        raise PackagingError(
            f"{before.backend} is {simulation}. Its timing says nothing about the device: run this on a host with the "
            f"device; until then the planned costs stay unchanged"
        )
    if before.model is not None and not before.model.answers_padding:
        raise PackagingError(
            f"{before.model.name} answers by its own code, and fails on the padding that calls are measured with: its "
            "costs stay as they were measured while it was packaged"
        )
    with show_progress("measure", console, every_s=2.0) as report:
        return before, with_costs(before, *measure_costs(loaded, report, padding=bool(before.padding_costs)))


def _ratio(pairs: _Pairs) -> float | None:
    """Median of the ratios of the new cost of a call to its previous one."""
    ratios = [cost.milliseconds / was for cost, was in pairs if was]
    return median(ratios) if ratios else None


def _to_json(pairs: _Pairs, after: Manifest, on_cpu: Sequence[str]) -> dict[str, Any]:
    padding = {(cost.part, cost.bucket): cost.milliseconds for cost in after.padding_costs}
    measurement = after.measurement
    return {
        "ratio": _ratio(pairs),
        "threads": None if measurement is None else measurement.threads,
        "spread": None if measurement is None else measurement.spread,
        "on_cpu": on_cpu,
        "costs": [
            {
                "part": cost.part,
                **cost.bucket._asdict(),
                "milliseconds": cost.milliseconds,
                "before": was,
                "padding_milliseconds": padding.get((cost.part, cost.bucket)),
            }
            for cost, was in pairs
        ],
    }


def _print(pairs: _Pairs, after: Manifest, on_cpu: Sequence[str], archive: Path, console: Console) -> None:
    table = make_table("program", "bucket", numbers=("before ms", "now ms"))
    for cost, was in pairs:
        shape = f"{cost.bucket.batch} x {cost.bucket.length}"
        table.add_row(cost.part, shape, "" if was is None else f"{was:.3f}", f"{cost.milliseconds:.3f}")
    console.print(table)
    print_lines(console, *cost_lines(after.backend, after.measurement, on_cpu))
    if (ratio := _ratio(pairs)) is not None:
        print_lines(console, f"a call takes {ratio:.2f} times as long as before, in the median")
    print_lines(console, f"{archive} now plans batches by the milliseconds of this host")
