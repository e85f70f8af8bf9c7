"""`neuron-lstm init`."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "init", help="write a commented model-config.yaml to start from, by looking at the model"
    )
    command.add_argument("--model-file", required=True, type=Path, help="the Python file with the model's class")
    command.add_argument(
        "--args", nargs="+", default=[], type=_assignment, metavar="NAME=VALUE", help="arguments of the class"
    )
    command.add_argument("-o", "--output", type=Path, help="where to write it (default: standard output)")
    command.add_argument("-f", "--force", action="store_true", help="overwrite the output")
    command.set_defaults(run=_init)


def _assignment(text: str) -> tuple[str, Any]:
    """One NAME=VALUE; the value is a Python literal, or else the text itself.

    >>> _assignment("hidden=256"), _assignment("cell=lstm")
    (('hidden', 256), ('cell', 'lstm'))
    """
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _init(options: argparse.Namespace) -> None:
    from ..errors import PackagingError
    from ..user_model import importable, load_class
    from .init_config import starting_config

    if options.output is not None and options.output.exists() and not options.force:
        raise PackagingError(f"{options.output} exists; give --force to overwrite it")
    if not options.model_file.is_file():
        raise PackagingError(f"there is no file {options.model_file}")
    with importable(options.model_file.resolve().parent):
        text = starting_config(load_class(options.model_file.resolve()), dict(options.args))
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")
