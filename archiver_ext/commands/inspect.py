"""`neuron-lstm inspect`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .step_times import StepTime


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser("inspect", help="say what is in an archive")
    command.add_argument("archive", type=Path, help="a .mar, a .tar.gz or a folder")
    command.add_argument("--json", action="store_true", help="print the manifest as it is; a stream's with step_times")
    command.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ..archive.reader import ArchiveReader
    from .inspect_archive import print_manifest

    text = ArchiveReader(options.archive).manifest_json()
    manifest = json.loads(text)
    times = _step_times(manifest)
    if not options.json:
        print_manifest(manifest, Console(), times)
    elif times:
        told = {**manifest, "step_times": [asdict(time) for time in times]}
        sys.stdout.write(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(text)


def _step_times(manifest: Mapping[str, Any]) -> Sequence[StepTime]:
    """Of a stream; what it takes to tell is imported for no other."""
    if manifest.get("streaming") is None:
        return ()
    from .step_times import step_times

    return step_times(manifest)
