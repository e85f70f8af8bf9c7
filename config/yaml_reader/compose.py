"""Parser of a YAML text into nodes, which refuses what is no mapping or could exhaust the reader."""

from __future__ import annotations

import re

import yaml

from ..diagnostics import ConfigError, Diagnostic, truncate
from ..schema import BLOCK
from .nodes import line_of, plain_tag

_MAX_CHARACTERS = 64 * 1024
MAX_DEPTH = 32
"""Lists and mappings inside each other."""
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def compose_mapping(text: str, source: str) -> yaml.MappingNode:
    """Parse a text into the nodes of one mapping. `source` names the file in messages.

    Raises:
        ConfigError: it is not YAML, not a mapping, or too large.
    """
    try:
        _refuse_shape(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(source, [_syntax_problem(error, text)]) from error
    if root is None:
        raise ConfigError(source, [Diagnostic("", 1, f"is empty: expected TorchServe's keys and a {BLOCK}: block")])
    if not isinstance(root, yaml.MappingNode):
        got = "a list" if isinstance(root, yaml.SequenceNode) else truncate(repr(root.value))
        raise ConfigError(source, [Diagnostic("", line_of(root), f"expected keys with values, got {got}")])
    if root.tag != plain_tag(root):
        message = f"expected a plain mapping, got the tag {truncate(repr(root.tag))}"
        raise ConfigError(source, [Diagnostic("", line_of(root), message)])
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
            if depth > MAX_DEPTH:
                problem = f"lists and mappings may be nested at most {MAX_DEPTH} deep"
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
