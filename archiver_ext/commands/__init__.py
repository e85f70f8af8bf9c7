"""Commands of `neuron-lstm`: the table of their modules, and what several of them share.

A new command is one file here and its entry in `COMMANDS`; a file may add two that belong together. Heavy imports
(torch, rich, yaml) stay inside functions, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...config.diagnostics import printable
from ...inference.errors import ArchiveError

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = (
    "schema",
    "init",
    "analyze",
    "inspect",
    "calibrate",
    "replace_weights",
    "sign",
    "bench",
    "predict",
    "serve",
    "tune",
    "sessions",
)
"""Modules of this package, in the order of the help. The function `add_to` of each adds its commands to the parser."""

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - argparse has no public name
"""The argument of `add_to`, which gets the parser of each command."""

_MAX_NUMBER = 999_999_999


def positive(text: str, largest: int = _MAX_NUMBER) -> int:
    """Parse a number of an option.

    >>> positive("32")
    32

    Raises `ArgumentTypeError`: it is not a whole number from 1 to `largest`.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= largest):
        limit = "on" if largest == _MAX_NUMBER else f"to {largest}"
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 {limit}, got {text}")
    return int(text)


def add_archive(command: argparse.ArgumentParser) -> None:
    """Add the argument that names an archive."""
    command.add_argument("archive", type=Path, help="a .mar, a .tar.gz or a folder")


def add_archive_output(command: argparse.ArgumentParser) -> None:
    """Add the option that names the archive to write."""
    command.add_argument("-o", "--output", type=Path, help="the file or folder to write (default: replace the archive)")


def check_output(output: Path, given: Path, what: str, option: str = "-o") -> None:
    """Refuse an output that would replace another file of the command, under whatever name.

    Raises `ArchiveError`: both are the same file; `what` says which.
    """
    if output.exists() and given.exists() and output.samefile(given):
        raise ArchiveError(f"{output} is {what}: give another file with {option}")


def print_line(line: str) -> None:
    """Print a line on standard output at once, as from a command that goes on."""
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def print_note(note: str) -> None:
    """Print a remark for people on standard error."""
    sys.stderr.write(f"{printable(note)}\n")


def print_log(line: str) -> None:
    """Print a line of a server's log, with its end, on standard error: clients write parts of it."""
    sys.stderr.write(printable(line))


def tell_unsigned(archive: Path) -> None:
    """Say on standard error that an archive had a signature, and has none now."""
    print_note(f"{archive} is no longer signed, because its files changed: sign it again (neuron-lstm sign)")


def show(options: argparse.Namespace, to_json: Callable[[], object], print_tables: Callable[[Console], object]) -> None:
    """Print a result on standard output: as JSON with --json, else as tables."""
    if options.json:
        print_json(to_json())
    else:
        from rich.console import Console

        print_tables(Console())


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
