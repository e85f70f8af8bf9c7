"""Documents lead to what is there: links, indexes, names of files, tests of threats."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
DOCS = ROOT / "docs"
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")


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


def test_the_index_lists_every_page() -> None:
    rows = "\n".join(line for line in INDEX.splitlines() if line.startswith("| "))
    listed = {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", rows)}

    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= listed


def test_the_index_lists_every_example() -> None:
    examples = {f"../examples/{page.parent.name}/README.md" for page in ROOT.glob("examples/*/README.md")}

    assert examples
    assert examples <= set(re.findall(r"\]\(([^)]+)\)", INDEX))


def test_the_readme_leads_to_the_index_and_to_the_glossary() -> None:
    top = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Five minutes")[0]

    assert {"docs/README.md", "docs/glossary.md"} <= set(re.findall(r"\]\(([^)]+)\)", top))


def test_every_term_of_the_glossary_is_explained_once() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \| (.+) \|$", GLOSSARY, re.MULTILINE)
    terms = [term.lower() for term, _, _ in rows]

    assert len(rows) >= 30
    assert terms == sorted(set(terms))
    assert len(rows) == sum(line.startswith("| **") for line in GLOSSARY.splitlines())


def threats() -> list[list[str]]:
    table = (ROOT / "SECURITY.md").read_text("utf-8").partition("## Threats")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.strip().splitlines()[2:]]


def test_each_threat_names_a_file_with_tests() -> None:
    assert len(threats()) > 20
    for row in threats():
        attack, defence, test = row
        (file,) = re.findall(r"`(tests/[^`]+\.py)`", test)
        assert attack
        assert defence or "all of the above" in row
        assert "\ndef test_" in (ROOT / file).read_text("utf-8"), file
