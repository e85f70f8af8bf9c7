"""`neuron-lstm sessions`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "sessions",
        help="say how many sessions of a streaming archive are open",
        description="Count the open sessions that an archive's store holds, on the host that serves it. Run it as the "
        "user who runs the server, with the server's environment: both say where the store is.",
    )
    command.add_argument("archive", type=Path, help="a .mar, a .tar.gz or a folder")
    command.add_argument("--name", metavar="MODEL", help="that it is served under (default: the archive's own)")
    command.add_argument("--json", action="store_true", help="print the figures for machines")
    command.set_defaults(run=_sessions)


def _sessions(options: argparse.Namespace) -> None:
    from .open_counts import count_sessions, summarize, to_json

    found = count_sessions(options.archive, options.name, os.environ)
    sys.stdout.write(json.dumps(to_json(found), indent=2) + "\n" if options.json else f"{summarize(found)}\n")
