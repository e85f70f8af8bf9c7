"""Files of the package that are carried in an archive: those that serving with its engine and store imports.

What serving needs is imported at the top of a file; an import inside a function belongs to packaging. The files that
serving imports otherwise are the start points.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from ...backends.registry import ENGINES
from .layout import package_directory

Node = TypeVar("Node", bound=Hashable)

_HANDLER = ("handlers/neuron_lstm.py", "handlers/torchserve.py", "handlers/runtime/checked_modules.py")
_SESSIONS = "handlers/streaming/open_sessions.py"
STORES = {
    "client": (_SESSIONS,),
    "disk": (_SESSIONS, "sessions/sqlite/store.py"),
    "redis": (_SESSIONS, "sessions/redis/store.py"),
}
"""Start points of each kind of store of sessions."""


def carried_files(
    engine: str,
    *,
    cpu_segments: bool = False,
    store: str | None = None,
    own_model: bool = False,
    native_layers: bool = False,
    shadow: bool = False,
) -> tuple[Path, ...]:
    """Return the files that an archive served by this engine carries, relative to the package.

    `cpu_segments`: a program is divided between the engine and the CPU. `store`: where sessions are; None: the archive
    serves none. `own_model`: the model itself answers. `native_layers`: the native library computes layers of it.
    `shadow`: answers are compared with those of the model itself. An engine of another distribution comes with it.
    """
    parts = {
        "backends/eager.py": cpu_segments,
        "handlers/runtime/own_model.py": own_model,
        "handlers/runtime/native_layers.py": native_layers,
        "handlers/runtime/shadow.py": shadow,
    }
    start = [*_HANDLER, *(file for file, is_carried in parts.items() if is_carried)]
    start += STORES[store] if store is not None else ()
    data: tuple[str, ...] = ()
    if engine in ENGINES:
        start.append(f"backends/{ENGINES[engine].module.replace('.', '/')}.py")
        data = tuple(f"backends/{file}" for file in ENGINES[engine].data)
    return tuple(sorted({*imported_files(package_directory(), map(Path, start)), *map(Path, data)}))


def imported_files(package: Path, start: Iterable[Path]) -> set[Path]:
    """Return the files that are imported from `start` at the tops of files, directly or not, and those themselves."""
    return reachable(start, partial(_imports, package))


def reachable(start: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return what is reached from `start` in any number of steps, and that itself."""
    reached: set[Node] = set()
    pending = [*start]
    while pending:
        if (node := pending.pop()) not in reached:
            reached.add(node)
            pending += following(node)
    return reached


@cache
def _imports(package: Path, file: Path) -> tuple[Path, ...]:
    """The files of the package that importing a file runs first: its packages, and what it imports at its top."""
    packages = (folder / "__init__.py" for folder in file.parents)
    statements = ast.parse((package / file).read_text("utf-8")).body
    imported = (path for one in statements if isinstance(one, ast.ImportFrom) for path in _modules(package, file, one))
    return (*packages, *imported)


def _modules(package: Path, file: Path, statement: ast.ImportFrom) -> Iterator[Path]:
    """The files of a relative import, whose names may be modules."""
    if statement.level:
        base = file.parents[statement.level - 1].joinpath(*(statement.module or "").split("."))
        for module in (base, *(base / name.name for name in statement.names)):
            candidates = (module.with_suffix(".py"), module / "__init__.py")
            yield from (path for path in candidates if (package / path).is_file())
