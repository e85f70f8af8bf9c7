"""The language of the code: docstring openings, first lines, standard words, one file for each class."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_rules import FOLDERS
from prose_rules import (
    PRIVATE_WORDS,
    class_homonyms,
    docstrings,
    long_first_lines,
    private_words,
    riddles,
    split_first_lines,
)

ROOT = Path(__file__).parents[1]
EVERYWHERE = (*FOLDERS, "examples", "tests", "tools")
"""The sub-packages, and the folders beside them."""
CODE = (".py", ".cpp", ".cu", ".h")


def test_docstrings_begin_with_an_imperative_or_a_noun_phrase() -> None:
    """No public docstring, of an attribute either, begins with a question word."""
    found = docstrings(ROOT, EVERYWHERE)

    assert len(found) > 3000
    assert riddles(found) == []


def test_the_first_line_of_a_docstring_is_short() -> None:
    """At most 100 characters, so that it can be read in an index."""
    assert long_first_lines(docstrings(ROOT, EVERYWHERE)) == []


def test_the_first_line_of_a_docstring_ends_in_itself() -> None:
    """An empty line follows it, also in docstrings of attributes, which ruff's D205 does not check."""
    assert split_first_lines(docstrings(ROOT, EVERYWHERE)) == []


def test_a_class_name_is_defined_in_one_file() -> None:
    """A public class name is defined in one file only."""
    assert class_homonyms(ROOT, FOLDERS) == {}


def test_texts_use_standard_words() -> None:
    """Neither the code nor the pages use a word that readers would have to learn here."""
    # The list of the words is in a file of the tests.
    folders = [folder for folder in EVERYWHERE if folder != "tests"]
    code = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in CODE]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]

    assert private_words(ROOT, [*code, *(page for page in pages if page.name != "CHANGELOG.md")]) == []


@pytest.mark.parametrize(
    "docstring", ['"""What it is."""', '"""Where it lies, and why."""', '"""Of those that were answered."""']
)
def test_a_question_word_is_found(tmp_path: Path, docstring: str) -> None:
    """Modules, classes, functions and attributes are checked; private names are not."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "a.py").write_text(
        f"{docstring}\n\nclass A:\n    {docstring}\n\n    x: int = 1\n    {docstring}\n\n    def f(self):\n"
        f"        {docstring}\n\n\ndef _g():\n    {docstring}\n"
    )

    found = docstrings(tmp_path, ("config",))

    assert [one.name for one in found] == ["module", "A", "A.x", "A.f"]
    assert len(riddles(found)) == 4


def test_a_long_first_line_is_found(tmp_path: Path) -> None:
    """100 characters are allowed, 101 are not."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "a.py").write_text(f'"""{"x" * 100}"""\n\n\ndef f():\n    """{"y" * 101}"""\n')

    assert [line.split(":")[2].strip() for line in long_first_lines(docstrings(tmp_path, ("config",)))] == ["f"]


def test_a_first_line_that_goes_on_in_the_second_is_found(tmp_path: Path) -> None:
    """An empty line between them is needed."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "a.py").write_text('"""A\nb.\n"""\n\nX = 1\n"""C.\n\nD.\n"""\nY = 1\n"""E\nf.\n"""\n')

    assert [line.split(":")[2].strip() for line in split_first_lines(docstrings(tmp_path, ("config",)))] == [
        "module",
        "Y",
    ]


def test_a_class_name_of_two_files_is_found(tmp_path: Path) -> None:
    """Two files with a class of one name are named; private classes may be alike."""
    for file in ("config/a.py", "handlers/a.py"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("class Model: ...\nclass _Own: ...\n")

    assert class_homonyms(tmp_path, ("config", "handlers")) == {"Model": ["config/a.py", "handlers/a.py"]}


@pytest.mark.parametrize("word", PRIVATE_WORDS)
def test_a_private_word_is_found(tmp_path: Path, word: str) -> None:
    """Whole words count, in any case."""
    (tmp_path / "page.md").write_text(f"text\n{word.title()}\nun{word}\n")

    assert private_words(tmp_path, [tmp_path / "page.md"]) == [f"page.md:2: {word.title()}"]
