"""`neuron-lstm schema` and `neuron-lstm verify-config`: the configuration's JSON Schema, and its
check.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import print_json


def add_to(commands: Any) -> None:
    """Add both commands to the parser."""
    schema = commands.add_parser("schema", help="print the JSON Schema of model-config.yaml, for editors")
    schema.set_defaults(run=_schema)
    verify = commands.add_parser(
        "verify-config",
        help="check a model-config.yaml without packaging anything",
        description="Check a model-config.yaml without packaging anything: every problem at once, with path and line.",
    )
    verify.add_argument("file", type=Path)
    verify.set_defaults(run=_verify_config)


def _schema(options: argparse.Namespace) -> None:
    from ...config.schema import json_schema

    print_json(json_schema())


def _verify_config(options: argparse.Namespace) -> None:
    from ...config.load import load_config

    grid = load_config(options.file).grid
    sys.stdout.write(f"{options.file}: valid, {len(grid.buckets)} buckets\n")
