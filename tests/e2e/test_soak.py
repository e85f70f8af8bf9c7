"""`make soak` in a small size: a quarter of a minute of good and bad requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_good_requests_are_answered_and_bad_ones_refused_under_load(tmp_path: Path) -> None:
    """No worker ends, and descriptors and threads stay.

    Memory is read and not required: caches still fill in so short a run.
    """
    figures_file = tmp_path / "figures.json"
    size = ["--minutes", "0.25", "--clients", "8", "--backend", "eager", "--json", str(figures_file)]
    done = subprocess.run([sys.executable, "-m", "soak", *size], cwd=ROOT, capture_output=True, text=True, check=False)

    assert figures_file.exists(), done.stdout + done.stderr
    figures = json.loads(figures_file.read_text())
    missed = [one["what"] for one in figures["laws"] if one["reached"] == "missed"]
    assert [what for what in missed if "growth of memory" not in what] == [], done.stdout
    assert done.returncode == (1 if missed else 0)
    assert set(figures["readings"]) == {"tagger 1", "stream 1", "java"}
    assert all(len(taken) > 50 for taken in figures["readings"].values())
    assert (figures["wrong"], figures["requests"]["good"] > 100) == ([], True)
