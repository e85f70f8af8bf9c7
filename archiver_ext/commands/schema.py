"""`neuron-lstm schema`: the JSON Schema of the configuration."""

from __future__ import annotations

import argparse

from . import Commands, print_json


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "schema",
        help="print the JSON Schema of model-config.yaml, for editors",
        description="Print the JSON Schema of model-config.yaml, for editors.",
    )
    command.set_defaults(run=_schema)


def _schema(options: argparse.Namespace) -> None:
    from ...config.json_schema import json_schema

    print_json(json_schema())
