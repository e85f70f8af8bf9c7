"""The user's own code in an archive: files given with `--extra-files`, and named in the YAML as `module:name`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def named(reference: str, directory: Path) -> Any:
    """What `reference` ("module:name") names, from a file in `directory`, which is to be `standing_in`.

    Raises:
        ImportError, AttributeError, or whatever the file raises: it is not there.
    """
    module, _, name = reference.partition(":")
    return getattr(_import(module, directory), name)


def _import(name: str, directory: Path) -> object:
    module = importlib.import_module(name)
    file = Path(getattr(module, "__file__", None) or "")
    if not file.resolve().is_relative_to(directory.resolve()):
        raise ImportError(f"another module of this name is already there ({file}); give this file another name")
    return module


@contextmanager
def standing_in(directory: Path) -> Iterator[None]:
    """`directory` as the working directory meanwhile, and first on `sys.path` from now on: code may import late."""
    before = Path.cwd()
    if sys.path[:1] != [str(directory)]:
        sys.path.insert(0, str(directory))
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
