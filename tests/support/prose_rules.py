"""Language rules, read off the source: docstring openings, first lines, private words, class names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST_FIRST_LINE = 100
_RIDDLE = re.compile(r"(What|Where|Of|Why|Which|How|Who|When)\b")

PRIVATE_WORDS = (
    "staircase",
    "stair",
    "sealed",
    "hollow",
    "stand-in",
    "onward",
    "lapsed",
    "rubbish",
    "gone on with",
    "goes on from",
    "last resort",
    "held against",
    "piece of time",
    "pieces of time",
    "zoo",
    "law",
    "shim",
    "serving half",
    "packaging half",
    "rival",
    "at hand",
    "cannot be believed",
    "vouch",
    "vouches",
    "even proportion",
    "for their sake",
    "dealt anew",
    "nobody",
    "meanwhile",
    "again and again",
)
"""Words without a meaning in the field; docs/glossary.md has a standard term for each."""


@dataclass(frozen=True)
class Docstring:
    """A docstring: the file, its line, the described name, and the text."""

    file: str
    line: int
    name: str
    text: str

    @property
    def first_line(self) -> str:
        """The first line of the text."""
        return self.text.strip().split("\n", 1)[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}: {self.first_line[:80]}"


def docstrings(root: Path, packages: tuple[str, ...]) -> list[Docstring]:
    """The docstrings of modules, and of public classes, functions, methods and attributes."""
    files = sorted(path for package in packages for path in (root / package).rglob("*.py"))
    return [found for path in files for found in _of_file(path, path.relative_to(root).as_posix())]


def _of_file(path: Path, file: str) -> Iterator[Docstring]:
    tree = ast.parse(path.read_text("utf-8"))
    if text := ast.get_docstring(tree):
        yield Docstring(file, 1, "module", text)
    yield from _of_body(tree.body, file, "")


def _of_body(body: list[ast.stmt], file: str, prefix: str) -> Iterator[Docstring]:
    for place, node in enumerate(body):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith("_"):
                continue
            if text := ast.get_docstring(node):
                yield Docstring(file, node.lineno, prefix + node.name, text)
            if isinstance(node, ast.ClassDef):
                yield from _of_body(node.body, file, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and place + 1 < len(body):
            following = body[place + 1]
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = ast.unparse(target)
            if (
                isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
                and not name.startswith("_")
            ):
                yield Docstring(file, following.lineno, prefix + name, following.value.value)


def riddles(found: list[Docstring]) -> list[str]:
    """The docstrings that begin with a question word."""
    return [str(one) for one in found if _RIDDLE.match(one.text.strip())]


def long_first_lines(found: list[Docstring]) -> list[str]:
    """The docstrings with a first line that is too long."""
    return [f"{one} ({len(one.first_line)})" for one in found if len(one.first_line) > LONGEST_FIRST_LINE]


def split_first_lines(found: list[Docstring]) -> list[str]:
    """The docstrings whose first line goes on in the second."""
    return [str(one) for one in found if one.text.strip().partition("\n")[2].partition("\n")[0].strip()]


def class_homonyms(root: Path, packages: tuple[str, ...]) -> dict[str, list[str]]:
    """Public class names that are defined in more than one file, with the files."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for package in packages for path in (root / package).rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(root).as_posix())
    return {name: files for name, files in homes.items() if len(files) > 1}


def private_words(root: Path, files: Iterable[Path]) -> list[str]:
    """The lines that use a private word, as "file:line: word"."""
    words = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, PRIVATE_WORDS))})s?(?!\w)", re.IGNORECASE)
    return [
        f"{path.relative_to(root).as_posix()}:{number}: {match.group(0)}"
        for path in sorted(files)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (match := words.search(line))
    ]
