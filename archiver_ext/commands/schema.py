"""`neuron-lstm schema` and `verify-config`: the JSON Schema of the configuration, and the check of one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Commands, print_json

if TYPE_CHECKING:
    from ...config.diagnostics import Diagnostic


def add_to(commands: Commands) -> None:
    """Add both commands to the parser."""
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of model-config.yaml, for editors",
        description="Print the JSON Schema of model-config.yaml, for editors.",
    )
    schema.set_defaults(run=lambda _: print_json(json_schema()))
    command = commands.add_parser(
        "verify-config",
        help="check a model-config.yaml without packaging anything",
        description="Check a model-config.yaml without packaging anything: every problem at once, with path and line.",
    )
    command.add_argument("file", type=Path, help="the model-config.yaml")
    command.set_defaults(run=_verify_config)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a whole model-config.yaml, for editors."""
    from ...config.frontend import Frontend
    from ...config.schema import BLOCK, NeuronLstmBlock

    keys = Frontend.model_json_schema()["properties"]
    for entry in keys.values():  # null, the second choice, stands for a key that is left out: it is not written
        entry.update(entry.pop("anyOf", [{}])[0])
    block = NeuronLstmBlock.model_json_schema()
    definitions = block.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "model-config.yaml of a model served by neuron_lstm",
        "type": "object",
        "properties": {**keys, BLOCK: {"$ref": f"#/$defs/{block['title']}"}},
        "required": [BLOCK],
        "dependentRequired": {"minWorkers": ["maxWorkers"], "maxWorkers": ["minWorkers"]},
        "$defs": {**definitions, block["title"]: block},
    }


def _verify_config(options: argparse.Namespace) -> None:
    from ...config.diagnostics import ConfigError
    from ...config.load import config_text, load_config

    problems: list[Diagnostic] = []
    buckets = 0
    try:
        buckets = len(load_config(options.file).grid.buckets)
    except ConfigError as error:
        problems += error.diagnostics
    problems += _unknown_engines(config_text(options.file), str(options.file))
    if problems:
        raise ConfigError(str(options.file), problems)
    sys.stdout.write(f"{options.file}: valid, {buckets} buckets\n")


def _unknown_engines(text: str, source: str) -> Iterator[Diagnostic]:
    from ...backends.registry import backend_names, unknown_backend
    from ...config.diagnostics import Diagnostic, format_path
    from ...config.engine_choice import AUTO
    from ...config.schema import BLOCK
    from ...config.yaml_text import YamlDocument

    document = YamlDocument(source)
    document.read(text)
    for key in (("backend",), ("backend", "auto", "try")):
        value: Any = document.values.get(BLOCK)
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        for name in value if isinstance(value, list) else [value]:
            if isinstance(name, str) and name not in (AUTO, *backend_names()):
                place = (BLOCK, *key)
                yield Diagnostic(format_path(place), document.lines.get(place, 1), unknown_backend(name))
