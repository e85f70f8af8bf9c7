"""User code in an archive: files given with `--extra-files` and named in the YAML as `module:name`.

The bucket selector is written as `kernel: module:function` in the YAML:

    def choose(length: int, lengths: tuple[int, ...]) -> int

`length` is the timesteps of a sequence, `lengths` are those of the grid, ascending; the function returns the index of
the bucket length in which the sequence runs. It is called for every length while the archive is loaded, and not later.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...bucketing.planner import tabulate_selector
from ...config.manifest import Manifest
from .checked_modules import serves_modules


def import_reference(reference: str, directory: Path) -> Any:
    """Import the object that `reference` ("module:name") names, from a file in `directory`.

    The caller has entered `working_directory`.

    Raises:
        ImportError, AttributeError: the module or the object is missing; or whatever the file raises.
    """
    module, _, name = reference.partition(":")
    return getattr(_import(module, directory), name)


def _import(name: str, directory: Path) -> object:
    module = importlib.import_module(name)
    file = Path(getattr(module, "__file__", None) or "")
    if not file.resolve().is_relative_to(directory.resolve()):
        raise ImportError(f"another module of this name is already imported ({file}); give this file another name")
    return module


@contextmanager
def working_directory(directory: Path) -> Iterator[None]:
    """Make `directory` the working directory in this context, and its modules importable also after it.

    User code may import modules later.

    In a worker the entry file has done the second. Elsewhere the directory goes first on `sys.path`, and no bytecode is
    written into it.
    """
    before, bytecode = Path.cwd(), sys.dont_write_bytecode
    if not serves_modules(directory):
        sys.dont_write_bytecode = True
        if sys.path[:1] != [str(directory)]:
            sys.path.insert(0, str(directory))
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
        sys.dont_write_bytecode = bytecode


def selected_lengths(manifest: Manifest, directory: Path) -> tuple[int, ...] | None:
    """Return the bucket lengths that the user's selector in `directory` returns; None without one.

    They are those of 1, 2, 3, ... timesteps.

    Raises:
        RuntimeError: the function is missing, or its return value is not valid; with the cause.
    """
    return None if manifest.kernel is None else load_bucket_selector(manifest.kernel, manifest.grid.lengths, directory)


def load_bucket_selector(reference: str, lengths: tuple[int, ...], directory: Path) -> tuple[int, ...]:
    """Tabulate the selector of this name for the lengths of a grid. Raises `RuntimeError`: as `selected_lengths`."""
    with working_directory(directory):
        try:
            choose = import_reference(reference, directory)
        except Exception as error:
            raise RuntimeError(f"kernel {reference}: {type(error).__name__}: {error}") from error
        try:
            return tabulate_selector(choose, lengths)
        except ValueError as error:
            raise RuntimeError(f"kernel {reference}: {error}") from error
