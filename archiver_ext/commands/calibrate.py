"""`neuron-lstm calibrate`: the machine that packages is seldom the machine that serves."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...config.manifest import Manifest, MeasuredCost


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "calibrate",
        help="measure an archive's programs on this host, for the plans made here",
        description="Measure an archive's programs on this host, and write the milliseconds into the archive: plans "
        "are made by them. Run it where the archive will be served, while nothing else runs there.",
    )
    command.add_argument("archive", type=Path, help="a .mar, a .tar.gz or a folder")
    command.add_argument("-o", "--output", type=Path, help="where to write it (default: in place of the archive)")
    command.add_argument(
        "--threads", type=_positive, help="threads of one worker (default: as configured, or else all cores)"
    )
    command.add_argument("--json", action="store_true", help="print what was measured as JSON")
    command.set_defaults(run=_run)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return int(text)


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ...config.manifest import manifest_text
    from ..archive.reader import ArchiveReader
    from ..archive.writer import rewrite_manifest

    with ArchiveReader(options.archive).unpacked() as directory:
        before, after = _measured(directory, options.threads, Console(stderr=True))
    rewrite_manifest(options.archive, manifest_text(after), options.output or options.archive)
    if options.json:
        sys.stdout.write(json.dumps(_as_json(before, after), indent=2) + "\n")
    else:
        _print(before, after, options.output or options.archive)


def _measured(directory: Path, threads: int | None, console: Any) -> tuple[Manifest, Manifest]:
    """The manifest as it is, and with this host's milliseconds."""
    from ...config.manifest import MeasuredCost
    from ...handlers.runtime.loader import load_archive
    from ..build.calibrate import measure_costs, measure_padding
    from ..progress import show_progress

    variants = load_archive(directory, threads)
    _refuse_simulation(variants.manifest.backend)
    with show_progress("measure", console, every_s=2.0) as report:
        measured = measure_costs(variants, report)
    before = variants.manifest
    padding = measure_padding(variants) if before.padding_costs else {}
    after = replace(
        before,
        costs=tuple(MeasuredCost(part, bucket, ms) for part, found in measured.items() for bucket, ms in found.items()),
        padding_costs=tuple(MeasuredCost("sequence", bucket, ms) for bucket, ms in padding.items()),
    )
    return before, after


def _refuse_simulation(backend: str) -> None:
    """Refuse to measure what stands in for a device.

    Raises:
        PackagingError: says what does.
    """
    from ...backends.interface import Simulating
    from ...backends.registry import get_backend
    from ..errors import PackagingError

    engine = get_backend(backend)
    simulation = engine.simulation() if isinstance(engine, Simulating) else None
    if simulation is not None:
        raise PackagingError(
            f"{backend} is {simulation}. What that takes says nothing of the device: measure where there is one; until "
            f"then plans stay as they are"
        )


def _pairs(before: Manifest, after: Manifest) -> list[tuple[MeasuredCost, float | None]]:
    """Each measurement, and what it was before."""
    known = {(cost.part, cost.bucket): cost.milliseconds for cost in before.costs}
    return [(cost, known.get((cost.part, cost.bucket))) for cost in after.costs]


def _ratio(before: Manifest, after: Manifest) -> float | None:
    """How many times as long a call takes here, in the median."""
    ratios = [cost.milliseconds / was for cost, was in _pairs(before, after) if was]
    return median(ratios) if ratios else None


def _as_json(before: Manifest, after: Manifest) -> dict[str, Any]:
    return {
        "ratio": _ratio(before, after),
        "costs": [
            {
                "part": cost.part,
                "batch": cost.bucket.batch,
                "length": cost.bucket.length,
                "milliseconds": cost.milliseconds,
                "before": was,
            }
            for cost, was in _pairs(before, after)
        ],
    }


def _print(before: Manifest, after: Manifest, archive: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("program", "bucket", highlight=False)
    for heading in ("before ms", "here ms"):
        table.add_column(heading, justify="right")
    for cost, was in _pairs(before, after):
        shape = f"{cost.bucket.batch} x {cost.bucket.length}"
        table.add_row(cost.part, shape, "" if was is None else f"{was:.3f}", f"{cost.milliseconds:.3f}")
    console = Console()
    console.print(table)
    ratio = _ratio(before, after)
    if ratio is not None:
        console.print(f"a call takes {ratio:.2f} times as long here, in the median", highlight=False)
    console.print(f"{archive} plans by this host's milliseconds from now on", highlight=False, soft_wrap=True)
