"""YAML text: its values with their lines, every problem that YAML itself does not report, and plain values as text.

The only file that imports yaml. A text is parsed into nodes, each with its position. Then every value of a known key is
read; duplicate keys, tags, keys that are no text and octal or base-60 numbers are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, ClassVar

import yaml

from .diagnostics import ConfigError, Diagnostic, Location, format_path, truncate
from .frontend import Frontend
from .schema import BLOCK
from .strict import closest_key

_TAG = "tag:yaml.org,2002:"
"""Beginning of the tags that YAML itself defines."""
_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp")
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)
"""Errors of PyYAML on a text that is not what its tag promises: `!!int x`, a 13th month."""
_OTHER_BASE = re.compile(r"\s*[-+_]*0[0-9_]+\s*|.*:.*", re.DOTALL)
_EXPONENT = re.compile(r"([-+]?[0-9]+)(\.[0-9]*)?[eE]([-+]?)([0-9]+)")
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_MOST_VALUES = 200_000
_TOO_DEEP = "lists and mappings are nested too deep, or hold themselves"


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

        Raises `ConfigError`: it is not YAML, or not a mapping.
        """
        root = _parse_mapping(text, self.source)
        try:
            self._read_known(root)
        except RecursionError as error:
            raise ConfigError(self.source, [Diagnostic("", 1, _TOO_DEEP)]) from error

    def report(self, location: Location, message: str) -> None:
        """Report a problem with the value at `location`, or with its key."""
        self.refused.add(location)
        self.diagnostics.append(Diagnostic(format_path(location), self._line(location), message))

    def report_once(self, location: Location, message: str) -> None:
        """Report a problem with a value, unless the value was refused already."""
        if location not in self.refused:
            self.report(location, message + _misreading(self.nodes.get(location)))

    def _read_known(self, root: yaml.MappingNode) -> None:
        strangers, known = set(), (*Frontend.model_fields, BLOCK)
        for key, value in self._entries(root, ()):
            slip = closest_key(key, known, cutoff=0.8)
            if key in known:
                self.values[key] = self._value(value, (key,))
            elif slip:
                strangers.add(slip)
                self.report((key,), f"is not a key of TorchServe or of the plug-in: did you mean {slip}?")
            else:  # of another program, but workers read the whole file
                if _written_out(value, {}) > _MOST_VALUES:
                    self.report((key,), f"has more than {_MOST_VALUES:,} values, with all aliases (*) written out")
                    continue
                try:
                    yaml.constructor.SafeConstructor().construct_document(value)
                except _UNREADABLE:
                    unreadable = "is a value that TorchServe's workers cannot read: expected plain YAML, without tags"
                    self.report((key,), unreadable)
        if BLOCK not in self.values and BLOCK not in strangers:
            message = "is missing: this block names the model's inputs and the buckets to compile them for"
            self.diagnostics.append(Diagnostic(BLOCK, 1, message))

    def _line(self, location: Location) -> int:
        # The line of a missing value is that of the mapping that should hold it.
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)

    def _entries(self, node: yaml.MappingNode, at: Location) -> Iterator[tuple[str, yaml.Node]]:
        """Yield each key with its value, of duplicates the first. Keys that are not text are reported and left out."""
        for key, value in node.value:
            is_text = isinstance(key, yaml.ScalarNode) and key.tag == f"{_TAG}str"
            written = truncate(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            location = (*at, key.value if is_text else written)
            if not is_text:
                self.lines.setdefault(location, _line_of(key))
                self.report(location, _key_complaint(key, written))
            elif location not in self.lines:
                self.lines[location] = _line_of(key)
                self.nodes[location] = value
                yield key.value, value
            else:
                message = f"is given twice, first on line {self.lines[location]}: expected each key once"
                self.diagnostics.append(Diagnostic(format_path(location), _line_of(key), message))

    def _value(self, node: yaml.Node, at: Location) -> Any:
        if len(self.lines) > _MOST_VALUES:
            message = f"is one of more than {_MOST_VALUES:,} values, with all aliases (*) written out"
            raise ConfigError(self.source, [Diagnostic(format_path(at), self._line(at), message)])
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, at)
        if node.tag != _plain_tag(node):
            self.report(at, f"expected a plain mapping or list, got the tag {truncate(repr(node.tag))}")
        if isinstance(node, yaml.MappingNode):
            return {key: self._value(value, (*at, key)) for key, value in self._entries(node, at)}
        return [self._item(item, (*at, index)) for index, item in enumerate(node.value)]

    def _item(self, node: yaml.Node, at: Location) -> Any:
        self.lines[at] = _line_of(node)
        self.nodes[at] = node
        return self._value(node, at)

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind in ("int", "float") and _OTHER_BASE.fullmatch(node.value):
            written = truncate(node.value.strip())
            self.report(at, f"expected a decimal number, got {written}, which YAML reads in base 8 or 60")
        elif kind not in _PLAIN_TAGS:
            self.report(at, f"expected a plain value, got the tag {truncate(repr(node.tag))}")
        else:
            try:
                value = yaml.constructor.SafeConstructor().construct_document(node)
                str(value)  # Python refuses to write out numbers of some thousand digits, as in messages
            except _UNREADABLE:
                self.report(at, f"expected a value that YAML can read as {kind}, got {truncate(repr(node.value))}")
            else:
                return value
        return None


class _PlainDumper(yaml.SafeDumper):
    """Writer of plain values, each as often as it occurs."""

    yaml_representers: ClassVar[dict[Any, Any]] = {
        kind: write for kind, write in yaml.SafeDumper.yaml_representers.items() if kind not in (bytes, set)
    }

    def ignore_aliases(self, data: object) -> bool:
        """Write no aliases."""
        return True


_PlainDumper.add_representer(
    str, lambda writer, text: writer.represent_scalar(f"{_TAG}str", text, style=None if text.isprintable() else '"')
)


def flow_text(value: object) -> str:
    r"""Write a plain value on one line, which reads back as itself; a tuple as a list.

    >>> print(flow_text({"hidden": 256, "dropout": 1e-05, "names": ("a", "no", 'b"c\n'), "bias": None}))
    {hidden: 256, dropout: 1.0e-05, names: [a, 'no', "b\"c\n"], bias: null}

    Raises `ValueError`: it contains a value without a plain form in YAML.
    """
    options: dict[str, Any] = {"default_flow_style": True, "allow_unicode": True, "sort_keys": False, "width": inf}
    try:
        text = yaml.dump([value], Dumper=_PlainDumper, **options)
    except yaml.representer.RepresenterError as error:
        expected = "expected texts, numbers, lists and mappings"
        raise ValueError(f"{value!r} cannot be written in YAML: {expected}") from error
    return str(text).strip()[1:-1]


def max_workers(text: str) -> object:
    r"""Return `maxWorkers` of a YAML; None if it has none, or if TorchServe cannot read it either.

    >>> max_workers("minWorkers: 2\nmaxWorkers: 2"), max_workers("[maxWorkers"), max_workers("")
    (2, None, None)
    """
    try:
        root = _parse(text)  # without values: aliases within aliases can have billions
        pairs = root.value if isinstance(root, yaml.MappingNode) else []
        found = [value for key, value in pairs if key.value == "maxWorkers" and isinstance(value, yaml.ScalarNode)]
        return yaml.SafeLoader("").construct_object(found[-1]) if found else None
    except _UNREADABLE:
        return None


def _parse_mapping(text: str, source: str) -> yaml.MappingNode:
    try:
        root = _parse(text)
    except yaml.YAMLError as error:
        raise ConfigError(source, [_syntax_problem(error, text)]) from error
    if root is None:
        raise ConfigError(source, [Diagnostic("", 1, f"is empty: expected TorchServe's keys and a {BLOCK}: block")])
    if not isinstance(root, yaml.MappingNode):
        got = "a list" if isinstance(root, yaml.SequenceNode) else truncate(repr(root.value))
        raise ConfigError(source, [Diagnostic("", _line_of(root), f"expected keys with values, got {got}")])
    if root.tag != _plain_tag(root):
        message = f"expected a plain mapping, got the tag {truncate(repr(root.tag))}"
        raise ConfigError(source, [Diagnostic("", _line_of(root), message)])
    return root


def _parse(text: str) -> yaml.Node | None:
    loader = yaml.SafeLoader(text)
    try:
        root: yaml.Node | None = loader.get_single_node()
    except (ValueError, OverflowError) as error:  # an escape that names no character
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=loader.get_mark()) from error
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=loader.get_mark()) from error
    return root


def _syntax_problem(error: yaml.YAMLError, text: str) -> Diagnostic:
    if isinstance(error, yaml.reader.ReaderError):
        character = error.character if isinstance(error.character, str) else chr(error.character)
        line = 1 + len(_LINE_BREAK.findall(text[: error.position]))
        return Diagnostic("", line, f"is not YAML: the character {character!r} is not allowed")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Diagnostic("", 1, str(error))
    mark = error.problem_mark or error.context_mark
    last = 1 + len(_LINE_BREAK.findall(text.rstrip("\n")))
    line = min(mark.line + 1, last) if mark else 1
    words = " ".join(part for part in (error.context, error.problem) if part)
    advice = ": indent with spaces" if "'\\t'" in words else ""
    return Diagnostic("", line, f"is not YAML: {truncate(words, 200)}{advice}")


def _misreading(node: yaml.Node | None) -> str:
    """Explain how YAML read a value that looks like something else.

    >>> [_misreading(yaml.compose(text)) for text in ("no", "1e-5", "'8'", "8")]
    [' (YAML reads no as a boolean: quote it if a text is meant)', ' (YAML takes 1e-5 for text: write 1.0e-5)',
     ' (without the quotes it is no text)', '']
    """
    if not isinstance(node, yaml.ScalarNode):
        return ""
    if node.style in ("'", '"'):
        bare = yaml.compose(node.value, Loader=yaml.SafeLoader) if node.value.isalnum() else None
        return "" if bare is None or bare.tag == f"{_TAG}str" else " (without the quotes it is no text)"
    if node.tag == f"{_TAG}bool" and node.value.lower() not in ("true", "false"):
        return f" (YAML reads {node.value} as a boolean: quote it if a text is meant)"
    number = _EXPONENT.fullmatch(node.value) if node.tag == f"{_TAG}str" else None
    if number is None:
        return ""
    whole, fraction, sign, exponent = number.groups()
    return f" (YAML takes {truncate(node.value)} for text: write {whole}{fraction or '.0'}e{sign or '+'}{exponent})"


def _key_complaint(key: yaml.Node, written: str) -> str:
    if key.tag == f"{_TAG}merge":
        return "expected no merge key: write the keys out"
    if isinstance(key, yaml.ScalarNode):
        kinds = {"bool": "true or false", "int": "a number", "float": "a number"}
        kind = kinds.get(key.tag.removeprefix(_TAG), "no text")
        return f"expected a text as key, but YAML reads {written!r} as {kind}: put it in quotes"
    return "expected a text as key, got a list or a mapping"


def _plain_tag(node: yaml.Node) -> str:
    """Return the tag of an ordinary mapping or list, as this node should have it."""
    return f"{_TAG}map" if isinstance(node, yaml.MappingNode) else f"{_TAG}seq"


def _written_out(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Count the values of a node, with all aliases written out: to merge mappings (<<) takes as long."""
    if id(node) not in sizes:
        sizes[id(node)] = 1  # within itself
        parts = node.value if isinstance(node, (yaml.SequenceNode, yaml.MappingNode)) else ()
        inner = chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in parts)
        sizes[id(node)] = 1 + sum(_written_out(one, sizes) for one in inner)
    return sizes[id(node)]


def _line_of(node: yaml.Node) -> int:
    """Return the line of a node, counted from 1."""
    return int(node.start_mark.line) + 1
