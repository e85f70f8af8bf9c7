"""ARCHITECTURE.md names existing files and sub-packages, and layers that the import rules allow."""

import re
from pathlib import Path

from import_rules import ALLOWED_PACKAGES, FOLDERS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def folders_in(folder: Path) -> set[str]:
    found = [path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._"]
    return {path.name for path in found if any(file.suffix != ".pyc" for file in path.rglob("*") if file.is_file())}


def test_every_file_that_is_named_exists() -> None:
    """A path in backticks is relative to the repository's root, or to the package."""
    layers = TEXT[: TEXT.index("## The archive")]
    named = re.findall(r"`([\w/]+/(?:[\w.]+)?)`", layers)
    below = [ROOT, *(ROOT / package for package in FOLDERS), ROOT / "examples", ROOT / "tests", ROOT / "tools"]

    assert len(named) > 40
    assert [name for name in named if not any((root / name).exists() for root in below)] == []


def test_every_package_has_a_paragraph() -> None:
    assert {name for name in FOLDERS if f"**`{name}/`**" not in TEXT} == set()


def test_every_folder_has_its_line() -> None:
    tops = folders_in(ROOT) - {*FOLDERS, "src", "build", "dist"}
    examples = folders_in(ROOT / "examples")

    assert len(tops) > 3
    assert {name for name in tops if f"| `{name}/` |" not in TEXT} == set()
    assert {name for name in examples if f"`{name}/`" not in TEXT} == set()


def test_arrows_are_allowed_imports() -> None:
    diagram = TEXT[TEXT.index("```mermaid") : TEXT.index("```", TEXT.index("```mermaid") + 3)]
    arrows = re.findall(r"(\w+) --> (\w+)", diagram)

    assert len(arrows) >= 8
    allowed = {package: {name.partition(".")[0] for name in names} for package, names in ALLOWED_PACKAGES.items()}
    assert [(above, below) for above, below in arrows if below not in allowed[above]] == []
    assert {package for package in FOLDERS if not re.search(rf"\b{package}\b", diagram)} == set()
