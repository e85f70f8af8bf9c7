"""Diagnostics: problems in a file, each with its path and line, in the form that editors can jump to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Location = tuple[str | int, ...]
"""Keys and list indices from the top of a file down to one value."""


class Diagnostic(NamedTuple):
    """One problem."""

    path: str
    """Path such as `neuron_lstm.buckets.batch[2]`; empty for the file as a whole."""
    line: int
    """Counted from 1, and always a line of the file."""
    message: str


class ConfigError(ValueError):
    """A configuration that cannot be used, with every problem in it, in the order of the lines.

    >>> print(ConfigError("a.yaml", [Diagnostic("batchSize", 3, "expected 1 or more, got 0")]))
    a.yaml:3: batchSize: expected 1 or more, got 0
    """

    def __init__(self, source: str, problems: Iterable[Diagnostic]) -> None:
        self.source = source
        self.diagnostics = tuple(sorted(set(problems), key=lambda one: (one.line, one.path, one.message)))
        parts = ((f"{source}:{one.line}", one.path, one.message) for one in self.diagnostics)
        super().__init__("\n".join(": ".join(filter(None, each)) for each in parts))


def format_path(location: Location) -> str:
    """Format a location as in messages.

    >>> format_path(("neuron_lstm", "buckets", "batch", 2))
    'neuron_lstm.buckets.batch[2]'
    >>> format_path(("neuron_lstm", "inputs", "two words"))
    "neuron_lstm.inputs['two words']"
    """
    return "".join(_step(part, first=index == 0) for index, part in enumerate(location))


def _step(part: str | int, *, first: bool) -> str:
    if isinstance(part, int) or not part.replace("-", "_").isidentifier():
        return f"[{truncate(repr(part))}]"
    return part if first else f".{part}"


def printable(text: str) -> str:
    r"""Replace characters that a terminal would obey, or hide, by their escapes; lines stay.

    >>> print(printable("\x1b[31mred\nf\xe9vrier"))
    \x1b[31mred
    f\xe9vrier
    """
    return "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in text)


def truncate(text: str, longest: int = 60) -> str:
    """Shorten a text to `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
