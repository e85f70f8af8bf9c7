"""Tags and positions of YAML nodes."""

from __future__ import annotations

import yaml

TAG = "tag:yaml.org,2002:"
"""Beginning of the tags that YAML itself defines."""

UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)
"""Errors of PyYAML on a text that is not what its tag promises: `!!int x`, a 13th month."""


def plain_tag(node: yaml.Node) -> str:
    """Return the tag of an ordinary mapping or list, as this node should have it."""
    return f"{TAG}map" if isinstance(node, yaml.MappingNode) else f"{TAG}seq"


def is_text(key: yaml.Node) -> bool:
    """Whether YAML reads a key as text."""
    return isinstance(key, yaml.ScalarNode) and key.tag == f"{TAG}str"


def line_of(node: yaml.Node) -> int:
    """Return the line of a node, counted from 1."""
    return int(node.start_mark.line) + 1
