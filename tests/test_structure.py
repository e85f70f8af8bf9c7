"""The structure of the package, derived from its imports: layers without cycles, files of one concept."""

from collections.abc import Mapping
from pathlib import Path

import networkx as nx
import pytest
from import_rules import ALLOWED_PACKAGES, PACKAGE, Import, imports_of, source_files

ROOT = Path(__file__).parents[1]
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
    packages: dict[str, set[str]] = {}
    for file, imported in files.items():
        package = file.partition("/")[0]
        packages.setdefault(package, set()).update(other.partition("/")[0] for other in imported)
    return {package: others - {package} for package, others in packages.items()}


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """The groups of two or more nodes that reach each other.

    >>> circles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    [('a', 'b')]
    """
    groups = nx.strongly_connected_components(nx.DiGraph(graph))
    return sorted(tuple(sorted(group)) for group in groups if len(group) > 1)


def long_files(root: Path) -> list[str]:
    """The source files of the package with more than `LONGEST_FILE` lines, as "file: lines"."""
    sizes = {
        path.relative_to(root).as_posix(): len(path.read_text("utf-8").splitlines())
        for package in sorted({path.relative_to(root).parts[0] for path in source_files(root)})
        for path in sorted((root / package).rglob("*"))
        if path.suffix in (".py", ".cpp", ".cu", ".h")
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


@pytest.mark.ci
def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions count too: they may delay work, but not hide a cycle."""
    assert circles(file_graph(ROOT)) == []


@pytest.mark.ci
def test_rooms_are_layers() -> None:
    assert circles(package_graph(file_graph(ROOT))) == []
    allowed = {package: {name.partition(".")[0] for name in names} for package, names in ALLOWED_PACKAGES.items()}
    assert circles(allowed) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    for file, text in {
        "bucketing/__init__.py": "",
        "bucketing/a.py": "def f():\n    from . import b\n",
        "bucketing/b.py": "from ..config import c\n",
        "config/__init__.py": "from .c import x\n",
        "config/c.py": "from ..bucketing.a import f as x\n",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)

    graph = file_graph(tmp_path)

    assert circles(graph) == [("bucketing/a.py", "bucketing/b.py", "config/c.py")]
    assert circles(package_graph(graph)) == [("bucketing", "config")]


def test_no_file_is_longer_than_one_concept() -> None:
    """A longer file is split where its second concept begins."""
    assert long_files(ROOT) == []


@pytest.mark.parametrize(("lines", "found"), [(430, []), (431, ["config/a.py: 431 lines"])])
def test_a_long_file_is_found(tmp_path: Path, lines: int, found: list[str]) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "a.py").write_text("x = 1\n" * lines)

    assert long_files(tmp_path) == found
