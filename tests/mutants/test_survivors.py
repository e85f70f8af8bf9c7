"""Mutants that once survived, without the tool that found them."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants.survivors import Survivor, read_survivors
from mutants.trial import Tree

ROOT = Path(__file__).parents[2]
KILLED = [one for one in read_survivors() if one.killed_by is not None]
IN_SHORT = 3


def name_of(survivor: Survivor) -> str:
    """The file, and the beginning of the change."""
    return f"{Path(survivor.file).stem}: {survivor.after.splitlines()[0][:40]}"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A copy of the repository."""
    return Tree(ROOT, tmp_path_factory.mktemp("mutants") / "tree")


@pytest.mark.parametrize("survivor", read_survivors(), ids=name_of)
def test_each_has_either_a_test_or_a_reason(survivor: Survivor) -> None:
    """Its lines are in its file, once."""
    assert (survivor.killed_by is None) != (survivor.harmless is None)
    assert survivor.text((ROOT / survivor.file).read_text()) != (ROOT / survivor.file).read_text()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "survivor",
    [pytest.param(one, marks=[pytest.mark.long] if index >= IN_SHORT else []) for index, one in enumerate(KILLED)],
    ids=map(name_of, KILLED),
)
def test_its_test_notices_it(survivor: Survivor, tree: Tree) -> None:
    """The named test fails with the change."""
    assert survivor.killed_by is not None
    with tree.changed(survivor.file, survivor.text((ROOT / survivor.file).read_text())):
        assert tree.run([survivor.killed_by], 250) == "killed"
