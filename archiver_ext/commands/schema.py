"""`neuron-lstm schema`."""

from __future__ import annotations

import json
import sys
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser("schema", help="print the JSON Schema of model-config.yaml, for editors")
    command.set_defaults(run=lambda options: _schema())


def _schema() -> None:
    from ...config.schema import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
