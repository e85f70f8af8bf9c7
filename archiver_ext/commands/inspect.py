"""`neuron-lstm inspect`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser("inspect", help="say what is in an archive")
    command.add_argument("archive", type=Path, help="a .mar, a .tar.gz or a folder")
    command.add_argument("--json", action="store_true", help="print the manifest as it is")
    command.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    from rich.console import Console

    from .inspect_archive import print_manifest, read_manifest_text

    text = read_manifest_text(options.archive)
    if options.json:
        sys.stdout.write(text)
    else:
        print_manifest(json.loads(text), Console())
