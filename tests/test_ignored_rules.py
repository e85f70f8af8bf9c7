"""Ignored rules of ruff and mypy: each has its reason on its line."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from import_rules import FOLDERS

ROOT = Path(__file__).parents[1]
EVERYWHERE = (*FOLDERS, "examples", "tests", "tools")
UNTOUCHED = ROOT / "tests" / "e2e" / "seed_models"
"""Files as their author typed them, which no linter reads."""
IGNORED = re.compile(r"(noqa|type: ignore)\b(: [A-Z0-9, ]+|\[[a-z, -]+\])?(?P<rest>.*)")


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The comments of a file that ignores rules, with their lines."""
    text = path.read_text()
    if IGNORED.search(text) is None:
        return
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def has_no_reason(comment: str) -> bool:
    """Whether a comment ignores a rule and says nothing else."""
    ignored = IGNORED.search(comment)
    return ignored is not None and re.search(r"\w", ignored["rest"]) is None


def test_each_ignored_rule_has_its_reason() -> None:
    """Without it, nobody can judge later whether the rule still has to be ignored."""
    files = [path for folder in EVERYWHERE for path in (ROOT / folder).rglob("*.py") if UNTOUCHED not in path.parents]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {comment}"
        for path in files
        for line, comment in comments(path)
        if has_no_reason(comment)
    ]

    assert len(files) > 1000
    assert found == []


@pytest.mark.parametrize(
    ("comment", "missing"),
    [
        ("# noqa: S311", True),
        ("# noqa", True),
        ("# type: ignore[arg-type, index]", True),
        ("# noqa: S311 - not a secret", False),
        ("# noqa: F401  registers the operators", False),
        ("# type: ignore[misc]  # KServe has no types", False),
        ("# an ordinary comment", False),
    ],
)
def test_a_missing_reason_is_found(comment: str, missing: bool) -> None:
    """A reason is any word behind the codes."""
    assert has_no_reason(comment) is missing
