"""Import graph of the package's files and sub-packages: circles, the order of layers, sizes of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from import_rules import PACKAGE, Import, imports_of, source_files

LONGEST_FILE = 430
"""Lines of a source file. A longer one holds two concepts."""

Graph = Mapping[str, set[str]]


def file_graph(root: Path) -> Graph:
    """The imported files of each source file, inside functions too, but not for type checking alone."""
    files = {path.relative_to(root).as_posix() for path in source_files(root)}
    graph: dict[str, set[str]] = {file: set() for file in files}
    for path in source_files(root):
        for found in imports_of(path, root):
            target = _imported_file(found, files)
            if target is not None and target != found.file and not found.typing_only:
                graph[found.file].add(target)
    return graph


def package_graph(files: Graph) -> Graph:
    """The import graph of the sub-packages."""
    packages: dict[str, set[str]] = {}
    for file, imported in files.items():
        package = file.partition("/")[0]
        packages.setdefault(package, set()).update(other.partition("/")[0] for other in imported)
    return {package: others - {package} for package, others in packages.items()}


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """The groups of two or more nodes that reach each other, by Tarjan's algorithm.

    >>> circles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    [('a', 'b')]
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for following in sorted(graph.get(node, ())):
            if following not in order:
                visit(following)
                lowest[node] = min(lowest[node], lowest[following])
            elif following in stack:
                lowest[node] = min(lowest[node], order[following])
        if lowest[node] == order[node]:
            place = stack.index(node)
            group = tuple(sorted(stack[place:]))
            del stack[place:]
            if len(group) > 1:
                found.append(group)

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return sorted(found)


def long_files(root: Path, suffixes: Iterable[str] = (".py", ".cpp", ".cu", ".h")) -> list[str]:
    """The source files of the package with more than `LONGEST_FILE` lines, as "file: lines"."""
    packages = sorted({path.relative_to(root).parts[0] for path in source_files(root)})
    sizes = {
        path.relative_to(root).as_posix(): len(path.read_text("utf-8").splitlines())
        for package in packages
        for path in sorted((root / package).rglob("*"))
        if path.suffix in suffixes
    }
    return [f"{file}: {lines} lines" for file, lines in sizes.items() if lines > LONGEST_FILE]


def _imported_file(found: Import, files: set[str]) -> str | None:
    if not found.ours or found.module == PACKAGE:
        return None
    parts = found.module.split(".")
    for count in range(len(parts), 0, -1):
        stem = "/".join(parts[:count])
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if file in files:
                return file
    return None
