"""`neuron-lstm calibrate`: the costs of an archive's programs, measured on the host that serves it."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..errors import PackagingError
from . import add_archive, add_archive_output, positive, show, tell_unsigned

if TYPE_CHECKING:
    from rich.console import Console

    from ...config.manifest import Manifest, MeasuredCost
    from ...handlers.runtime.loader import LoadedArchive


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "calibrate",
        help="measure an archive's programs on this host, to plan batches by these costs",
        description="Measure an archive's programs on this host, and write the milliseconds into the archive, where "
        "batches are planned by them. Run it on the serving host while nothing else runs there.",
    )
    add_archive(command)
    add_archive_output(command)
    command.add_argument(
        "--threads", type=positive, help="threads of one worker (default: as configured, or else all cores)"
    )
    command.add_argument("--json", action="store_true", help="print what was measured as JSON")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ...config.manifest import manifest_text
    from ...inference.open_archive import open_archive
    from ..archive.writer import rewrite_manifest

    with open_archive(options.archive, options.threads) as model:
        before, after = _measured(model.loaded, Console(stderr=True))
    output = options.output or options.archive
    if rewrite_manifest(options.archive, manifest_text(after), output):
        tell_unsigned(output)
    show(options, lambda: _to_json(before, after), lambda console: _print(before, after, output, console))


def _measured(loaded: LoadedArchive, console: Any) -> tuple[Manifest, Manifest]:
    """Return the manifest as it is, and with this host's milliseconds."""
    from ..evaluation.calibrate import measure_costs, measure_padding
    from ..evaluation.manifest_builder import with_costs
    from ..progress import show_progress

    _refuse_simulation(loaded.manifest.backend)
    with show_progress("measure", console, every_s=2.0) as report:
        measured = measure_costs(loaded, report)
    before = loaded.manifest
    padding = measure_padding(loaded) if before.padding_costs else {}
    return before, with_costs(before, measured, padding)


def _refuse_simulation(backend: str) -> None:
    """Refuse to measure an emulated device.

    Raises:
        PackagingError: the backend runs on an emulated device.
    """
    from ...backends.interface import simulation_of
    from ...backends.registry import get_backend

    if (simulation := simulation_of(get_backend(backend))) is not None:
        raise PackagingError(
            f"{backend} is {simulation}. Its timing says nothing about the device: run this on a host with the device; "
            f"until then the planned costs stay unchanged"
        )


def _pairs(before: Manifest, after: Manifest) -> list[tuple[MeasuredCost, float | None]]:
    """Each cost with its previous value."""
    known = {(cost.part, cost.bucket): cost.milliseconds for cost in before.costs}
    return [(cost, known.get((cost.part, cost.bucket))) for cost in after.costs]


def _ratio(before: Manifest, after: Manifest) -> float | None:
    """Median of the ratios of the new cost of a call to its previous one."""
    ratios = [cost.milliseconds / was for cost, was in _pairs(before, after) if was]
    return median(ratios) if ratios else None


def _to_json(before: Manifest, after: Manifest) -> dict[str, Any]:
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


def _print(before: Manifest, after: Manifest, archive: Path, console: Console) -> None:
    from ..tables import make_table

    table = make_table("program", "bucket", numbers=("before ms", "now ms"))
    for cost, was in _pairs(before, after):
        shape = f"{cost.bucket.batch} x {cost.bucket.length}"
        table.add_row(cost.part, shape, "" if was is None else f"{was:.3f}", f"{cost.milliseconds:.3f}")
    console.print(table)
    ratio = _ratio(before, after)
    if ratio is not None:
        console.print(f"a call takes {ratio:.2f} times as long as before, in the median", highlight=False)
    console.print(f"{archive} now plans by the milliseconds of this host", highlight=False, soft_wrap=True)
