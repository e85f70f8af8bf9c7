"""SECURITY.md names the test of each threat, and the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "SECURITY.md").read_text("utf-8")


def rows() -> list[list[str]]:
    table = TEXT.partition("## Threats")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.strip().splitlines()[2:]]


def test_each_threat_names_a_file_with_tests() -> None:
    assert len(rows()) > 20
    for row in rows():
        attack, defence, test = row
        (file,) = re.findall(r"`(tests/[^`]+\.py)`", test)
        assert attack
        assert defence or "all of the above" in row
        assert "\ndef test_" in (ROOT / file).read_text("utf-8"), file
