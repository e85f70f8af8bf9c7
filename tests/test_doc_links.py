"""Every link from a page of the documentation to another file has a target."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_links_to_our_own_files_lead_there(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        file, _, heading = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not heading or heading in headings(target), link


def test_there_are_pages() -> None:
    assert {"README.md", "CONTRIBUTING.md", "backends.md"} <= {page.name for page in PAGES}


def files_named_in(text: str) -> set[str]:
    """The files of the repository that a text names in backticks, by their last part, such as `plan.py`."""
    return {Path(name).name for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|cpp|cu|md))`", text)}


def test_files_that_the_code_names_exist() -> None:
    """A comment or docstring that names a file in backticks would else send readers to a former name."""
    users_own = {"model.py", "neuron_lstm.py", "program.py"}
    files = [path for path in ROOT.rglob("*") if path.suffix in {".py", ".cpp", ".cu", ".h", ".md"}]
    tracked = [
        path for path in files if not {".venv", ".hosts", ".git", "src", "build"} & {*path.relative_to(ROOT).parts}
    ]
    known = {path.name for path in tracked} | users_own
    code = [path for path in tracked if path.suffix != ".md" and "tests" not in path.relative_to(ROOT).parts]

    assert {"execute_chunks.py"} <= files_named_in("`execute_chunks.py` runs `a.b`")
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in code
        for name in files_named_in(path.read_text(encoding="utf-8")) - known
    }
    assert missing == set()
