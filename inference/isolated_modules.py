"""Modules of an archive's files in a process that may have other archives, with modules of the same names."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_ONE_AT_A_TIME = threading.RLock()


def _renew_lock() -> None:
    global _ONE_AT_A_TIME  # noqa: PLW0603 - the thread that held it is not in the fork
    _ONE_AT_A_TIME = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class IsolatedModules(MetaPathFinder):
    """The modules of one folder, which are imported and found within `imported` alone."""

    def __init__(self, folder: Path) -> None:
        found = {file.relative_to(folder).parts[0].removesuffix(".py") for file in folder.rglob("*.py")}
        # Every archive contains a part of this package.
        self._names = found - {_top(__name__)} - sys.stdlib_module_names
        self._folder = str(folder)
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def imported(self) -> Iterator[None]:
        """Import the folder's modules within the block; afterwards the process has those that it had before.

        Neither `sys.path` nor the modules of the process keep them, but the next block has them again.
        """
        with _ONE_AT_A_TIME:
            if self in sys.meta_path:  # within another block
                yield
                return
            before, bytecode, path = self._taken(), sys.dont_write_bytecode, list(sys.path)
            sys.modules.update(self._modules)
            sys.meta_path.insert(0, self)
            sys.dont_write_bytecode = True
            try:
                yield
            finally:
                sys.dont_write_bytecode, sys.path[:] = bytecode, path
                sys.meta_path.remove(self)
                self._modules = self._taken()
                sys.modules.update(before)

    def _taken(self) -> dict[str, ModuleType]:
        """Take the modules with the folder's names out of those of the process."""
        if self._names.isdisjoint(sys.modules):  # nearly always, and there are thousands of others
            return {}
        return {name: sys.modules.pop(name) for name in list(sys.modules) if _top(name) in self._names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module at the top of the folder. A folder without Python files is none: the host may have one."""
        mine = path is None and fullname not in sys.stdlib_module_names
        spec = PathFinder.find_spec(fullname, [self._folder]) if mine else None
        return spec if spec is not None and (spec.loader is not None or fullname in self._names) else None


def _top(name: str) -> str:
    return name.partition(".")[0]
