"""Modules of an archive, imported from its folder and then removed from `sys.modules`.

Two archives may have modules of one name. So neither `sys.path` nor the modules of the process keep them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_ONE_AT_A_TIME = threading.RLock()


class _FolderFinder(MetaPathFinder):
    """A finder of the modules at the top of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        mine = path is None and fullname not in sys.stdlib_module_names
        return PathFinder.find_spec(fullname, [self._folder]) if mine else None


@contextmanager
def isolated_modules(folder: Path) -> Iterator[None]:
    """Import modules of a folder within the block; afterwards the process has those that it had before."""
    found = {file.stem for file in folder.glob("*.py")} | {entry.name for entry in folder.iterdir() if entry.is_dir()}
    own = found - {_top(__name__)} - sys.stdlib_module_names  # every archive contains a part of this package
    with _ONE_AT_A_TIME:
        before = {name: sys.modules.pop(name) for name in list(sys.modules) if _top(name) in own}
        finder, bytecode, path = _FolderFinder(folder), sys.dont_write_bytecode, list(sys.path)
        sys.meta_path.insert(0, finder)
        sys.dont_write_bytecode = True
        try:
            yield
        finally:
            sys.dont_write_bytecode, sys.path[:] = bytecode, path
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if _top(name) in own]:
                del sys.modules[name]
            sys.modules.update(before)


def _top(name: str) -> str:
    return name.partition(".")[0]
