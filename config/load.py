"""Reader of model-config.yaml: every problem at once, with its path and line.

The only file that imports yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import ValidationError

from .diagnostics import ConfigError, Diagnostic, Location, format_path, truncate
from .file_errors import describe_cause
from .frontend import Frontend, suggest_key
from .histogram import LengthsError, read_lengths
from .schema import BLOCK, NeuronLstmBlock, ServingConfig
from .strict import Strict

_HISTOGRAM = (BLOCK, "buckets", "length", "histogram")
_MAX_CHARACTERS = 64 * 1024  # characters
_MAX_DEPTH = 32  # lists and mappings inside each other
_MAX_VALUES = 10_000  # with every alias written out
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp")
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_OTHER_BASE = re.compile(r"[-+]?0[0-9_]+|.*:.*")
_EXPONENT = re.compile(r"([-+]?[0-9]+)(\.[0-9]*)?[eE]([-+]?)([0-9]+)")

_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)
"""Errors that PyYAML raises on a text that is not what its tag promises, as in `!!int x` or a 13th month."""

ModelT = TypeVar("ModelT", bound=Strict)


def load_config(path: Path) -> ServingConfig:
    """Load the configuration from a file.

    Raises:
        ConfigError: it cannot be read, or something in it cannot be used.
    """
    return parse_config(_text(path), str(path), path.parent)


def max_workers(text: str) -> object:
    r"""Return `maxWorkers` of a YAML; None if it has none, or if TorchServe cannot read it either.

    >>> max_workers("minWorkers: 2\nmaxWorkers: 2"), max_workers("[maxWorkers"), max_workers("")
    (2, None, None)
    """
    try:
        found = yaml.safe_load(text)
    except (*_UNREADABLE, RecursionError):
        return None
    return found.get("maxWorkers") if isinstance(found, dict) else None


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), [Diagnostic("", 1, f"cannot be read: {describe_cause(error)}")]) from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        message = f"expected UTF-8 text, got the byte 0x{data[error.start]:02x}: save the file as UTF-8"
        raise ConfigError(str(path), [Diagnostic("", line, message)]) from error


def parse_config(text: str, source: str, folder: Path = Path()) -> ServingConfig:
    """Parse the text of a configuration.

    `source` names the file in messages, `folder` is the one that holds it.

    Raises:
        ConfigError: something in it, or in the histogram it names, cannot be used.
    """
    document = _Document(source)
    document.read(_composed(text, source))
    frontend = _checked(Frontend, document, {k: v for k, v in document.values.items() if k != BLOCK}, ())
    block = _checked(NeuronLstmBlock, document, document.values[BLOCK], (BLOCK,)) if BLOCK in document.values else None
    observed = _observed(document, folder)
    if not document.diagnostics and frontend is not None and block is not None:
        whole = {**dict(block), "frontend": frontend, "histogram": observed}
        config = _checked(ServingConfig, document, whole, (BLOCK,))
        if config is not None:
            return config
    raise ConfigError(source, document.diagnostics)


def load_block(path: Path) -> NeuronLstmBlock:
    """Load the plug-in's block of a file in an archive, which does not have the histogram that the
    block may name.

    Raises:
        ConfigError: it cannot be read, or something in it cannot be used.
    """
    document = _Document(str(path))
    document.read(_composed(_text(path), str(path)))
    written = document.values.get(BLOCK)
    block = None if written is None else _checked(NeuronLstmBlock, document, written, (BLOCK,))
    if block is None or document.diagnostics:
        raise ConfigError(str(path), document.diagnostics)
    return block


def _observed(document: _Document, folder: Path) -> dict[int, int] | None:
    name: Any = document.values
    for key in _HISTOGRAM:
        name = name.get(key) if isinstance(name, dict) else None
    if not isinstance(name, str) or not name:
        return None
    try:
        return read_lengths(folder / name)
    except LengthsError as error:
        document.report(_HISTOGRAM, f"{truncate(name if name.isprintable() else ascii(name))}: {error}")
        return None


class SourceSpan(NamedTuple):
    """Position of a key's value in a text, in characters."""

    key_end: int
    """End of the key, before its colon."""
    start: int
    end: int


def find_span(text: str, location: Location) -> SourceSpan | None:
    """Find the value at `location` in a text that `parse_config` accepts; None if there is none.

    >>> text = "a: {b: [1, 2]} # c"
    >>> place = find_span(text, ("a", "b"))
    >>> text[place.start:place.end], text[:place.key_end]
    ('[1, 2]', 'a: {b')
    """
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    found: tuple[yaml.Node, yaml.Node] | None = None
    for name in location:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = next(((key, value) for key, value in pairs if key.value == name), None)
        node = None if found is None else found[1]
    return None if found is None else SourceSpan(found[0].end_mark.index, found[1].start_mark.index, _end(found[1]))


def _end(node: yaml.Node) -> int:
    # In YAML a list or mapping without brackets ends only where the next node begins.
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _checked(model: type[ModelT], document: _Document, values: Any, prefix: Location) -> ModelT | None:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        for details in error.errors():
            location = details["loc"][:-1] if details["loc"][-1:] == ("[key]",) else details["loc"]
            document.report_once((*prefix, *location), details["msg"])
        return None


@dataclass
class _Document:
    """The values and positions of a file's known keys, and its problems."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    refused: set[Location] = field(default_factory=set)
    lines: dict[Location, int] = field(default_factory=dict)
    nodes: dict[Location, yaml.Node] = field(default_factory=dict)

    def read(self, root: yaml.MappingNode) -> None:
        for location, line, message in _duplicate_keys(root):
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

    def _refuse_unreadable(self, node: yaml.Node, at: Location) -> None:
        """Refuse a value of another program that no worker could read: workers read the whole file."""
        try:
            yaml.constructor.SafeConstructor().construct_document(node)
        except _UNREADABLE:
            self.report(at, "is a value that TorchServe's workers cannot read: expected plain YAML, without tags")

    def report(self, location: Location, message: str) -> None:
        self.refused.add(location)
        self.diagnostics.append(Diagnostic(format_path(location), self._line(location), message))

    def report_once(self, location: Location, message: str) -> None:
        """Report a problem with a value, unless the value was refused already."""
        if location not in self.refused:
            self.report(location, message + _hint(self.nodes.get(location)))

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
            location = (*at, key.value if _is_text(key) else written)
            if not _is_text(key):
                self.lines.setdefault(location, _line_of(key))
                self.report(location, _key_complaint(key, written))
            elif location not in self.lines:
                self.lines[location] = _line_of(key)
                self.nodes[location] = value
                yield key.value, value

    def _value(self, node: yaml.Node, at: Location) -> Any:
        self._refuse_excess(at)
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
        if kind in ("int", "float") and node.style is None and _OTHER_BASE.fullmatch(node.value):
            self.report(at, f"expected a decimal number, got {truncate(node.value)}, which YAML reads in base 8 or 60")
        elif kind not in _PLAIN_TAGS:
            self.report(at, f"expected a plain value, got the tag {truncate(repr(node.tag))}")
        else:
            return self._constructed(node, at, kind)
        return None

    def _constructed(self, node: yaml.ScalarNode, at: Location, kind: str) -> Any:
        try:
            return yaml.constructor.SafeConstructor().construct_document(node)
        except _UNREADABLE:
            self.report(at, f"expected a value that YAML can read as {kind}, got {truncate(repr(node.value))}")
            return None

    def _refuse_excess(self, at: Location) -> None:
        if len(at) > _MAX_DEPTH or len(self.nodes) > _MAX_VALUES:
            message = f"expected at most {_MAX_VALUES} values, nested {_MAX_DEPTH} deep, with aliases written out"
            raise ConfigError(self.source, [Diagnostic(format_path(at[:2]), self._line(at), message)])


def _composed(text: str, source: str) -> yaml.MappingNode:
    try:
        _refuse_shape(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
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


def _refuse_shape(text: str) -> None:
    """Refuse too large and too deep texts, and invalid escapes, before recursive code reads them."""
    if len(text) > _MAX_CHARACTERS:
        raise yaml.YAMLError(f"expected at most {_MAX_CHARACTERS} characters, got {len(text)}")
    loader = yaml.SafeLoader(text)
    depth = 0
    try:
        while loader.check_event():
            event = loader.get_event()  # type: ignore[no-untyped-call]  # PyYAML has no type for it
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                problem = f"lists and mappings may be nested at most {_MAX_DEPTH} deep"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
    except (ValueError, OverflowError) as error:
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=loader.get_mark()) from error


def _syntax_problem(error: yaml.YAMLError, text: str) -> Diagnostic:
    if isinstance(error, yaml.reader.ReaderError):
        found = error.character if isinstance(error.character, str) else chr(error.character)
        line = 1 + len(_LINE_BREAK.findall(text[: error.position]))
        return Diagnostic("", line, f"is not YAML: the character {found!r} is not allowed")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Diagnostic("", 1, str(error))
    mark = error.problem_mark or error.context_mark
    last = 1 + len(_LINE_BREAK.findall(text.rstrip("\n")))
    line = min(mark.line + 1, last) if mark else 1
    words = " ".join(part for part in (error.context, error.problem) if part)
    advice = ": indent with spaces" if "'\\t'" in words else ""
    return Diagnostic("", line, f"is not YAML: {truncate(words, 200)}{advice}")


def _duplicate_keys(root: yaml.Node) -> Iterator[tuple[Location, int, str]]:
    """Yield each repeated key of a mapping, of which YAML would silently keep the last."""
    for location, mapping in _mappings(root, (), set()):
        first: dict[tuple[str, str], int] = {}
        for key, _ in mapping.value:
            identity = (key.tag, str(key.value) if isinstance(key, yaml.ScalarNode) else str(id(key)))
            if identity in first:
                message = f"is given twice, first on line {first[identity]}: expected each key once"
                yield (*location, str(key.value)), _line_of(key), message
            first.setdefault(identity, _line_of(key))


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


def _plain_tag(node: yaml.Node) -> str:
    return f"{_TAG}map" if isinstance(node, yaml.MappingNode) else f"{_TAG}seq"


def _is_text(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.tag == f"{_TAG}str"


def _key_complaint(key: yaml.Node, written: str) -> str:
    if key.tag == f"{_TAG}merge":
        return "expected no merge key: write the keys out"
    if isinstance(key, yaml.ScalarNode):
        kinds = {"bool": "true or false", "int": "a number", "float": "a number"}
        kind = kinds.get(key.tag.removeprefix(_TAG), "no text")
        return f"expected a text as key, but YAML reads {written!r} as {kind}: put it in quotes"
    return "expected a text as key, got a list or a mapping"


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _hint(node: yaml.Node | None) -> str:
    """Explain how YAML read a value that looks like something else.

    >>> [_hint(yaml.compose(text)) for text in ("no", "1e-5", "'8'", "8")]
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
