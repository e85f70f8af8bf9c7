"""Keys that a YAML mapping has twice."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from ..diagnostics import Location
from .nodes import line_of


def duplicate_keys(root: yaml.Node) -> Iterator[tuple[Location, int, str]]:
    """Yield each repeated key of a mapping, of which YAML would silently keep the last."""
    for location, mapping in _mappings(root, (), set()):
        first: dict[tuple[str, str], int] = {}
        for key, _ in mapping.value:
            identity = (key.tag, str(key.value) if isinstance(key, yaml.ScalarNode) else str(id(key)))
            if identity in first:
                message = f"is given twice, first on line {first[identity]}: expected each key once"
                yield (*location, str(key.value)), line_of(key), message
            first.setdefault(identity, line_of(key))


def _mappings(node: yaml.Node, at: Location, seen: set[int]) -> Iterator[tuple[Location, yaml.MappingNode]]:
    """Yield each mapping once, however many aliases lead to it."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield at, node
        for key, value in node.value:
            yield from _mappings(value, (*at, str(key.value) if isinstance(key, yaml.ScalarNode) else "?"), seen)
    else:
        for index, item in enumerate(node.value):
            yield from _mappings(item, (*at, index), seen)
