"""A parsed model-config.yaml: its values, their lines, and the problems that were found in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..diagnostics import ConfigError, Diagnostic, Location, format_path, truncate
from ..frontend import Frontend, suggest_key
from ..schema import BLOCK
from .compose import MAX_DEPTH, compose_mapping
from .duplicates import duplicate_keys
from .merges import MAX_MERGED, MergedEntries
from .misreading import misreading
from .nodes import TAG, UNREADABLE, is_text, line_of, plain_tag

_MAX_VALUES = 10_000  # with every alias written out
_MAX_BITS = 2048  # more than a float has: Python refuses to write out numbers of some thousand digits
_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp")
_OTHER_BASE = re.compile(r"\s*[-+_]*0[0-9_]+\s*|.*:.*", re.DOTALL)


@dataclass
class YamlDocument:
    """The values and positions of a file's known keys, and its problems."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    refused: set[Location] = field(default_factory=set)
    lines: dict[Location, int] = field(default_factory=dict)
    nodes: dict[Location, yaml.Node] = field(default_factory=dict)

    def read(self, text: str) -> None:
        """Read the values of known keys from a text, and every problem that does not end the reading.

        Raises:
            ConfigError: it is not YAML, not a mapping, or too large.
        """
        root = compose_mapping(text, self.source)
        self._refuse_excessive_merges(root)
        for location, line, message in duplicate_keys(root):
            self.diagnostics.append(Diagnostic(format_path(location), line, message))
        strangers = set()
        for key, value in self._entries(root, ()):
            slip = suggest_key(key, BLOCK)
            if key in (*Frontend.model_fields, BLOCK):
                self.values[key] = self._value(value, (key,))
            elif slip:
                strangers.add(slip)
                self.report((key,), f"is not a key of TorchServe or of the plug-in: did you mean {slip}?")
            else:
                self._refuse_unreadable(value, (key,))
        if BLOCK not in self.values and BLOCK not in strangers:
            message = "is missing: this block names the model's inputs and the buckets to compile them for"
            self.diagnostics.append(Diagnostic(BLOCK, 1, message))

    def _refuse_excessive_merges(self, root: yaml.MappingNode) -> None:
        """Refuse merge keys that would take long to carry out, here and in TorchServe's workers."""
        merged = MergedEntries()
        for key, value in root.value:
            merged.count(value)
            if merged.is_excessive:
                path = format_path((truncate(str(key.value)),))
                message = f"expected merge keys that copy at most {MAX_MERGED} entries: write the keys out"
                raise ConfigError(self.source, [Diagnostic(path, line_of(key), message)])

    def _refuse_unreadable(self, node: yaml.Node, at: Location) -> None:
        """Refuse a value of another program that no worker could read: workers read the whole file."""
        try:
            yaml.constructor.SafeConstructor().construct_document(node)
        except UNREADABLE:
            self.report(at, "is a value that TorchServe's workers cannot read: expected plain YAML, without tags")

    def report(self, location: Location, message: str) -> None:
        """Report a problem with the value at `location`, or with its key."""
        self.refused.add(location)
        self.diagnostics.append(Diagnostic(format_path(location), self._line(location), message))

    def report_once(self, location: Location, message: str) -> None:
        """Report a problem with a value, unless the value was refused already."""
        if location not in self.refused:
            self.report(location, message + misreading(self.nodes.get(location)))

    def _line(self, location: Location) -> int:
        # The line of a missing value is that of the mapping that should hold it.
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)

    def _entries(self, node: yaml.MappingNode, at: Location) -> Iterator[tuple[str, yaml.Node]]:
        """Yield each key with its value, of duplicates the first.

        Keys that are not text are reported and left out.
        """
        for key, value in node.value:
            written = truncate(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            location = (*at, key.value if is_text(key) else written)
            if not is_text(key):
                self.lines.setdefault(location, line_of(key))
                self.report(location, _key_complaint(key, written))
            elif location not in self.lines:
                self.lines[location] = line_of(key)
                self.nodes[location] = value
                yield key.value, value

    def _value(self, node: yaml.Node, at: Location) -> Any:
        self._refuse_excess(at)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, at)
        if node.tag != plain_tag(node):
            self.report(at, f"expected a plain mapping or list, got the tag {truncate(repr(node.tag))}")
        if isinstance(node, yaml.MappingNode):
            return {key: self._value(value, (*at, key)) for key, value in self._entries(node, at)}
        return [self._item(item, (*at, index)) for index, item in enumerate(node.value)]

    def _item(self, node: yaml.Node, at: Location) -> Any:
        self.lines[at] = line_of(node)
        self.nodes[at] = node
        return self._value(node, at)

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> Any:
        kind = node.tag.removeprefix(TAG)
        if kind in ("int", "float") and _OTHER_BASE.fullmatch(node.value):
            self.report(
                at, f"expected a decimal number, got {truncate(node.value.strip())}, which YAML reads in base 8 or 60"
            )
        elif kind not in _PLAIN_TAGS:
            self.report(at, f"expected a plain value, got the tag {truncate(repr(node.tag))}")
        else:
            return self._constructed(node, at, kind)
        return None

    def _constructed(self, node: yaml.ScalarNode, at: Location, kind: str) -> Any:
        try:
            value = yaml.constructor.SafeConstructor().construct_document(node)
        except UNREADABLE:
            self.report(at, f"expected a value that YAML can read as {kind}, got {truncate(repr(node.value))}")
            return None
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            self.report(at, f"expected a number of at most {_MAX_BITS} bits, got {truncate(node.value)}")
            return None
        return value

    def _refuse_excess(self, at: Location) -> None:
        if len(at) > MAX_DEPTH or len(self.nodes) > _MAX_VALUES:
            message = f"expected at most {_MAX_VALUES} values, nested {MAX_DEPTH} deep, with aliases written out"
            raise ConfigError(self.source, [Diagnostic(format_path(at[:2]), self._line(at), message)])


def _key_complaint(key: yaml.Node, written: str) -> str:
    if key.tag == f"{TAG}merge":
        return "expected no merge key: write the keys out"
    if isinstance(key, yaml.ScalarNode):
        kinds = {"bool": "true or false", "int": "a number", "float": "a number"}
        kind = kinds.get(key.tag.removeprefix(TAG), "no text")
        return f"expected a text as key, but YAML reads {written!r} as {kind}: put it in quotes"
    return "expected a text as key, got a list or a mapping"
