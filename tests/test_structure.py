"""The structure of the package, derived from its imports: layers without cycles, files of one concept."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_rules import ALLOWED_PACKAGES
from structure import circles, file_graph, long_files, package_graph

ROOT = Path(__file__).parents[1]


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
