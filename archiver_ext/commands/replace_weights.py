"""`neuron-lstm replace-weights`: a model that was trained further needs no other programs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .new_weights import ReplaceResult


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "replace-weights",
        help="put other weights of the same model into an archive, without compiling",
        description="Put other weights of the same model into an archive: names, shapes and dtypes must be those of "
        "the old ones. Nothing is compiled; each program is verified against the model again. Its measured costs stay.",
    )
    command.add_argument("archive", type=Path, help="a .mar, a .tar.gz or a folder")
    command.add_argument("weights", type=Path, help="the new weights: a .pt, .pth or .safetensors file")
    command.add_argument("-o", "--output", type=Path, help="where to write it (default: in place of the archive)")
    command.add_argument("--json", action="store_true", help="print what was verified as JSON")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console

    from .new_weights import replace_weights

    output = options.output or options.archive
    replaced = replace_weights(options.archive, options.weights, output, Console(stderr=True))
    if options.json:
        sys.stdout.write(json.dumps(_as_json(replaced, output), indent=2) + "\n")
    else:
        _print(replaced, output)


def _as_json(replaced: ReplaceResult, output: Path) -> dict[str, Any]:
    after, known = replaced.after, _errors_before(replaced)
    return {
        "archive": str(output),
        "weights": after.weights,
        "state": None if after.streaming is None else after.streaming.state,
        "tolerance": {"atol": after.tolerance[0], "rtol": after.tolerance[1]},
        "checks": [
            {
                "batch": check.bucket.batch,
                "length": check.bucket.length,
                "max_error": check.max_error,
                "before": known.get(check.bucket),
            }
            for check in after.checks
        ],
    }


def _errors_before(replaced: ReplaceResult) -> dict[Any, float]:
    return {check.bucket: check.max_error for check in replaced.before.checks}


def _print(replaced: ReplaceResult, output: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    known = _errors_before(replaced)
    table = Table("bucket", highlight=False)
    for heading in ("max error before", "max error now"):
        table.add_column(heading, justify="right")
    for check in replaced.after.checks:
        before = known.get(check.bucket)
        shape = f"{check.bucket.batch} x {check.bucket.length}"
        table.add_row(shape, "" if before is None else f"{before:.1e}", f"{check.max_error:.1e}")
    console = Console()
    console.print(table)
    console.print(f"{output} serves the new weights; nothing was compiled", highlight=False, soft_wrap=True)
    if replaced.after.streaming is not None:
        console.print("sessions of the old weights are not gone on with: they begin anew", highlight=False)
