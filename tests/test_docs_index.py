"""docs/README.md lists every page, and docs/glossary.md has its terms in order."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")


def test_the_index_lists_every_page() -> None:
    rows = "\n".join(line for line in INDEX.splitlines() if line.startswith("| "))
    listed = {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", rows)}

    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= listed


def test_the_index_lists_every_example() -> None:
    examples = {f"../examples/{page.parent.name}/README.md" for page in DOCS.parent.glob("examples/*/README.md")}

    assert examples
    assert examples <= set(re.findall(r"\]\(([^)]+)\)", INDEX))


def test_the_readme_leads_to_the_index_and_to_the_glossary() -> None:
    top = (DOCS.parent / "README.md").read_text(encoding="utf-8").partition("## Five minutes")[0]

    assert {"docs/README.md", "docs/glossary.md"} <= set(re.findall(r"\]\(([^)]+)\)", top))


def test_every_term_of_the_glossary_is_explained_once() -> None:
    """Terms are in alphabetical order, each with a meaning and its name elsewhere or "no equivalent"."""
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \| (.+) \|$", GLOSSARY, re.MULTILINE)
    terms = [term.lower() for term, _, _ in rows]

    assert len(rows) >= 30
    assert terms == sorted(set(terms))
    assert len(rows) == sum(line.startswith("| **") for line in GLOSSARY.splitlines())
