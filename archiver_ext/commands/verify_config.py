"""`neuron-lstm verify-config`: the check of a configuration."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "verify-config",
        help="check a model-config.yaml without packaging anything",
        description="Check a model-config.yaml without packaging anything: every problem at once, with path and line.",
    )
    command.add_argument("file", type=Path)
    command.set_defaults(run=_verify_config)


def _verify_config(options: argparse.Namespace) -> None:
    from ...config.load import load_config

    grid = load_config(options.file).grid
    sys.stdout.write(f"{options.file}: valid, {len(grid.buckets)} buckets\n")
