"""The drawing in the README is the package's own plan."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.batch_picture import GRID, LENGTHS, draw, plan

FILE = Path(__file__).parents[2] / "docs" / "batch.svg"


def test_the_picture_is_what_the_program_draws() -> None:
    """After a change, draw it again: python -m benchmarks.batch_picture docs/batch.svg."""
    assert FILE.read_text(encoding="utf-8") == draw(plan(), LENGTHS)


def test_the_picture_has_every_call_and_every_request() -> None:
    """Each request is in it three times: received, sorted, and in one call."""
    words = [element.text or "" for element in ET.parse(FILE).iter() if element.tag.endswith("}text")]

    for run in plan().calls:
        assert run.bucket in GRID.buckets
        assert f"{run.bucket.batch} rows x {run.bucket.length} timesteps" in words
    for row in range(len(LENGTHS)):
        assert words.count(chr(ord("a") + row)) == 3
    assert f"of the {plan().computed_timesteps} computed timesteps" in " ".join(words)


def test_the_readme_shows_it_near_the_top() -> None:
    """The picture is before the tour, with an alternative text."""
    top = (FILE.parents[1] / "README.md").read_text(encoding="utf-8").partition("## Five minutes")[0]
    assert re.search(r"^!\[.{40,}\]\(docs/batch\.svg\)$", top, re.MULTILINE)
