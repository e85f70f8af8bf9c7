"""`neuron-lstm schema`: the JSON Schema of the configuration."""

from __future__ import annotations

from typing import Any

from . import Commands, print_json


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "schema",
        help="print the JSON Schema of model-config.yaml, for editors",
        description="Print the JSON Schema of model-config.yaml, for editors.",
    )
    command.set_defaults(run=lambda _: print_json(json_schema()))


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
