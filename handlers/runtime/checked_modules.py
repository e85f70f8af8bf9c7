"""Import of an archive's modules from checked bytes: no bytecode, no file that is not in the list.

The entry file runs this file before any other one, so it imports the standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from importlib.util import decode_source, spec_from_file_location
from pathlib import Path
from types import ModuleType


class CheckedModules(MetaPathFinder, ExecutionLoader):
    """Finder and loader of the modules of one archive. It goes first in `sys.meta_path`."""

    def __init__(self, folder: str, files: Collection[str], sources: Mapping[str, bytes]) -> None:
        """`files` are the listed paths, and `sources` the checked contents of the Python files among them."""
        self.archive = Path(folder)
        self._files = frozenset(files)
        self._sources = sources
        self._folders = {
            parent.as_posix() for file in sources for parent in Path(file).parents if parent.as_posix() != "."
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the archive; None leaves the name to the host.

        Raises `ModuleNotFoundError`: the name is below a package of the archive, which has no such module.
        """
        base, is_nested = fullname.replace(".", "/"), "." in fullname
        top = fullname.partition(".")[0]
        if is_nested and str(self.archive / top) not in getattr(sys.modules.get(top), "__path__", ()):
            return None  # the imported package of this name is one of the host
        if (source := self._source_path(fullname)) is not None:
            spec = ModuleSpec(fullname, self, origin=str(self.archive / source), is_package=self.is_package(fullname))
            spec.has_location = True
            if spec.submodule_search_locations is not None:
                spec.submodule_search_locations.append(str(self.archive / base))
            return spec
        for suffix in EXTENSION_SUFFIXES:
            if f"{base}{suffix}" in self._files:
                return spec_from_file_location(fullname, self.archive / f"{base}{suffix}")
        if base in self._folders and (is_nested or PathFinder.find_spec(fullname) is None):
            spec = ModuleSpec(fullname, None, is_package=True)  # a folder without an __init__.py
            spec.submodule_search_locations = [str(self.archive / base)]
            return spec
        if is_nested:
            raise ModuleNotFoundError(f"No module named {fullname!r} in the archive", name=fullname)
        return None

    def is_package(self, fullname: str) -> bool:
        """Whether the module is a package."""
        return f"{fullname.replace('.', '/')}/__init__.py" in self._sources

    def get_filename(self, fullname: str) -> str:
        """Return the path of the module's file. Raises `ImportError`: the archive has no such module."""
        source = self._source_path(fullname)
        if source is None:
            raise ImportError(f"No module named {fullname!r} in the archive", name=fullname)
        return str(self.archive / source)

    def get_source(self, fullname: str) -> str:
        """Return the text of the module as it was checked. Raises `ImportError`: the archive has no such module."""
        return decode_source(self._sources[Path(self.get_filename(fullname)).relative_to(self.archive).as_posix()])

    def _source_path(self, fullname: str) -> str | None:
        base = fullname.replace(".", "/")
        return next((path for path in (f"{base}/__init__.py", f"{base}.py") if path in self._sources), None)


def serves_modules(directory: Path) -> bool:
    """Whether modules of this folder are imported from checked bytes: its entry file runs here."""
    return any(getattr(finder, "archive", None) == directory.resolve() for finder in sys.meta_path)
