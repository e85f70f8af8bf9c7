"""The settings that all tests share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_CASES = """
import pytest
@pytest.mark.few(3)
@pytest.mark.parametrize("number", [*range(8), pytest.param(8, marks=pytest.mark.long)])
def test_a(number): ...
"""


def test_of_many_cases_a_few_are_not_left_to_ci(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(_CASES)
    conftest = Path(__file__).with_name("conftest.py")
    (tmp_path / "conftest.py").write_text(conftest.read_text("utf-8"))
    options = ["-c", str(tmp_path / "pytest.ini"), "--collect-only", "-q", "-m", "not ci and not long", str(tmp_path)]
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  few: x\n  ci: x\n  long: x\n")
    listed = subprocess.run([sys.executable, "-m", "pytest", *options], capture_output=True, text=True, check=True)

    assert [line for line in listed.stdout.splitlines() if "::" in line] == [
        "test_a.py::test_a[0]",
        "test_a.py::test_a[4]",
        "test_a.py::test_a[7]",
    ]
