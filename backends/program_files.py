"""JSON files beside a program, which its engine wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from ..config.json_codec import JsonError, read_json
from .interface import LoadError

T = TypeVar("T")


def read_program_file(kind: type[T], path: Path) -> T:
    """Read a file that `write_json` wrote.

    Raises:
        LoadError: the file is missing or damaged.
    """
    try:
        return read_json(kind, path)
    except JsonError as error:
        raise LoadError(str(error)) from error
