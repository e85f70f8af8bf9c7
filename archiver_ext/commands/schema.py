"""`neuron-lstm schema` and `verify-config`: the JSON Schema of the configuration, and the check of one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import Commands, print_json


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

    keys = {key: _without_null(entry) for key, entry in Frontend.model_json_schema()["properties"].items()}
    block = NeuronLstmBlock.model_json_schema()
    definitions = block.pop("$defs")
    together = {"minWorkers": ["maxWorkers"], "maxWorkers": ["minWorkers"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "model-config.yaml of a model served by neuron_lstm",
        "type": "object",
        "properties": {**keys, BLOCK: {"$ref": f"#/$defs/{block['title']}"}},
        "required": [BLOCK],
        "dependentRequired": together,
        "$defs": {**definitions, block["title"]: block},
    }


def _without_null(entry: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the schema of one of TorchServe's keys.

    It stands for a key that is left out, and is not written.

    >>> _without_null({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Min"})
    {'title': 'Min', 'type': 'integer'}
    """
    if "anyOf" not in entry:
        return entry
    rest = {word: value for word, value in entry.items() if word not in ("anyOf", "default")}
    (written,) = (kind for kind in entry["anyOf"] if kind != {"type": "null"})
    return {**rest, **written}


def _verify_config(options: argparse.Namespace) -> None:
    from ...config.load import load_config

    config = load_config(options.file)
    _check_engine(config.engine, ("backend",), options.file)
    for name in config.auto.engines or ():
        _check_engine(name, ("backend", "auto", "try"), options.file)
    grid = config.grid
    sys.stdout.write(f"{options.file}: valid, {len(grid.buckets)} buckets\n")


def _check_engine(name: str, key: tuple[str, ...], file: Path) -> None:
    """Refuse a backend that nothing installed here provides; `key` is its place below `neuron_lstm`."""
    from ...backends.registry import backend_names, unknown_backend
    from ...config.diagnostics import ConfigError, Diagnostic, format_path
    from ...config.engine_choice import AUTO
    from ...config.schema import BLOCK
    from ...config.yaml_text import find_span

    if name in (AUTO, *backend_names()):
        return
    text = file.read_text(encoding="utf-8")
    span = find_span(text, (BLOCK, *key))
    line = 1 if span is None else 1 + text.count("\n", 0, span.start)
    raise ConfigError(str(file), [Diagnostic(format_path((BLOCK, *key)), line, unknown_backend(name))])
