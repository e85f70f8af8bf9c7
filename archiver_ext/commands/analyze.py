"""`neuron-lstm analyze`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "analyze",
        help="say which operators of a model each engine takes",
        description="Say for each engine which operators of a model it takes, which not, and where the model has them. "
        "Nothing is packaged; engines that are not installed are asked as far as they can be.",
    )
    command.add_argument("--model-file", required=True, type=Path, help="the Python file with the model's class")
    command.add_argument("--config-file", required=True, type=Path, help="its model-config.yaml")
    command.add_argument("--serialized-file", type=Path, help="its weights; left out, fresh ones")
    command.add_argument("--backend", action="append", metavar="NAME", help="an engine; several times for several")
    command.add_argument("--json", action="store_true", help="print a list of one object for each engine")
    command.set_defaults(run=_analyze)


def _analyze(options: argparse.Namespace) -> None:
    from rich.console import Console

    from .analysis import analyze, lower_from_files
    from .analyze_report import print_analyses

    program, config = lower_from_files(options.model_file, options.config_file, options.serialized_file)
    found = analyze(program, config, options.config_file.resolve().parent, options.backend)
    if options.json:
        sys.stdout.write(json.dumps([one.to_json() for one in found], indent=2, ensure_ascii=False) + "\n")
    else:
        print_analyses(found, Console())
