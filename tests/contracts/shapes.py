"""The promised parts of a JSON value: keys and plain facts exactly, measurements and wording by kind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_LEFT_OUT = ("files", "produced_by")
_MEASURED = ("milliseconds", "max_error", "estimate_us", "size", "compile_s", "worst_ratio", "total_ms")


def kind(value: Any) -> str:
    """A value's JSON type.

    >>> [kind(value) for value in (None, True, 1.5, "a", [], {})]
    ['null', 'boolean', 'number', 'text', 'list', 'object']
    """
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (int | float, "number"), (str, "text"), (list, "list"), (dict, "object"))
    return next(name for kind, name in kinds if isinstance(value, kind))


def golden(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without digests and versions, with measurements and reasons masked.

    >>> golden({"kind": "chunk", "kind_reason": "why", "costs": [{"part": "head", "milliseconds": 0.5}], "files": {}})
    {'kind': 'chunk', 'kind_reason': '<text>', 'costs': [{'part': 'head', 'milliseconds': '<number>'}]}
    """
    kept = {key: _masked(key, value) for key, value in manifest.items() if key not in _LEFT_OUT}
    if "measurement" in kept:  # on this machine, which may be busy
        kept["measurement"] = {name: f"<{kind(value)}>" for name, value in kept["measurement"].items()}
    if "host" in kept:  # versions of the compiler's libraries
        kept["host"] = {name: value for name, value in kept["host"].items() if not name.isupper()}
    for need in kept.get("requires", ()):
        need["version"] = f"<{kind(need['version'])}>"
    if kept.get("tolerance", {}).get("atol") == 1e-2:
        assert kept["precision"] in ("float32", "bfloat16")
        kept["precision"] = "<whichever is faster>"
    return kept


def _masked(key: str, value: Any) -> Any:
    if key.endswith("_reason") or key in _MEASURED:
        return f"<{kind(value)}>"
    if isinstance(value, dict):
        return {name: _masked(name, one) for name, one in value.items()}
    return [_masked(key, one) for one in value] if isinstance(value, list) else value


def key_paths(value: Any, path: str = "") -> Iterator[str]:
    """The path of every key, with [] for the elements of a list.

    >>> sorted(set(key_paths({"costs": [{"part": 1}, {"part": 2, "ms": 3}], "ratio": None})))
    ['costs', 'costs[].ms', 'costs[].part', 'ratio']
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}".lstrip(".")
            yield from key_paths(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from key_paths(inner, f"{path}[]")


def keys(value: Any) -> list[str]:
    """Every key path once, in order."""
    return sorted(set(key_paths(value)))


def schema_facts(schema: dict[str, Any]) -> Any:
    """A JSON Schema with its references resolved, without titles, descriptions and examples."""
    return _facts(schema, schema.get("$defs", {}))


def _facts(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_facts(one, definitions) for one in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if reference is not None:
        others = {key: one for key, one in value.items() if key != "$ref"}
        return _facts({**definitions[reference.rpartition("/")[2]], **others}, definitions)
    return {
        key: {name: _facts(one, definitions) for name, one in inner.items()}
        if key == "properties"
        else _facts(inner, definitions)
        for key, inner in sorted(value.items())
        if key not in ("title", "description", "markdownDescription", "examples", "$defs")
    }


def flags(help_text: str) -> list[str]:
    """The option strings of a command, by its help."""
    offered = re.findall(r"^ {2,4}(-.*?)(?: {2,}|$)", help_text, re.MULTILINE)
    return sorted({flag for line in offered for flag in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line)})


def dump(value: Any) -> str:
    """JSON in the form of the data files."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=False) + "\n"


def arguments(help_text: str) -> list[str]:
    """The positional arguments of a command, in order."""
    section = help_text.partition("positional arguments:\n")[2].partition("\n\n")[0]
    return re.findall(r"^ {2}(\S+)", section, re.MULTILINE)
