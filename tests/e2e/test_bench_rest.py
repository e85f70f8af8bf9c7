"""The REST benchmark as a whole: two servers with the same answers under load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_both_servers_are_measured_and_answer_alike(tmp_path: Path) -> None:
    """The load is too short for the floors, which may be missed."""
    command = [sys.executable, "-m", "benchmarks.rest", "--rounds", "1", "--seconds", "0.5", "--connections", "8"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "figures.json")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == "every floor holds" if done.returncode == 0 else last.startswith("missed: "), done.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())

    assert set(figures["rounds"]) == {"plain", "ours"}
    assert all(taken["requests"] > 0 for rounds in figures["rounds"].values() for taken in rounds)
    assert len(figures["floors"]) == 2
