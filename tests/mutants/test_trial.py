"""Tests of changed code, on a small repository."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from mutants.areas import AREAS
from mutants.trial import Tree

ROOT = Path(__file__).parents[2]
TEST = "import rounding\n\n\ndef test_up():\n    assert rounding.up(9) == 16\n"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A copy of a repository with a file and a test of it."""
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "rounding.py").write_text("def up(x):\n    return -(-x // 8) * 8\n")
    (root / "tests").mkdir()
    (root / "tests" / "test_rounding.py").write_text(TEST)
    return Tree(root, tmp_path / "copy")


def test_a_change_that_a_test_notices_is_killed(tree: Tree) -> None:
    """Afterwards the file is as it was."""
    with tree.changed("src/rounding.py", "def up(x):\n    return -(-x // 8) * 9\n"):
        assert tree.run(["tests"], 60) == "killed"
    assert tree.run(["tests"], 60) == "survived"


def test_a_change_that_no_test_notices_survives(tree: Tree) -> None:
    """The one test rounds 9, not 8."""
    with tree.changed("src/rounding.py", "def up(x):\n    return (x // 8 + 1) * 8\n"):
        assert tree.run(["tests"], 60) == "survived"


def test_a_loop_without_an_end_is_stopped(tree: Tree) -> None:
    """Its process is gone."""
    started = time.monotonic()
    with tree.changed("src/rounding.py", "def up(x):\n    while True: pass\n"):
        assert tree.run(["tests"], 5) == "too slow"
    assert time.monotonic() - started < 60


def test_tests_that_do_not_exist_are_an_error(tree: Tree) -> None:
    """Otherwise every mutant would be killed."""
    with tree.changed("tests/test_rounding.py", ""), pytest.raises(RuntimeError, match="no tests"):
        tree.run(["tests"], 60)


@pytest.mark.parametrize("name", list(AREAS))
def test_an_area_has_files_and_tests(name: str) -> None:
    """All of them exist, for each pattern."""
    area = AREAS[name]

    assert all(any(ROOT.glob(pattern)) for pattern in area.sources)
    assert all((ROOT / test).exists() for file in area.files(ROOT) for test in area.tests_of(file, ROOT))


def test_the_tests_of_a_file_are_all_of_its_area() -> None:
    """Its own come first; pytest would leave out a folder that is named beside one of its files."""
    own, *others = AREAS["bucketing"].tests_of("bucketing/cost.py", ROOT)

    assert own == "tests/bucketing/test_cost.py"
    assert {own, *others} == {str(path.relative_to(ROOT)) for path in (ROOT / "tests/bucketing").rglob("test_*.py")}
