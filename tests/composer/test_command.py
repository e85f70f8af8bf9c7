"""The command: a count is continued, summed up, and fails with its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from composer.record import append
from composer.verdict import Verdict

ROOT = Path(__file__).parents[2]
ACCEPTED = Verdict(0, ("norm", "flip"), True, "accepted", "", "", "proved", 0.5)


def command(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the command from the repository's root."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "composer", *options]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_finished_count_is_summed_up(tmp_path: Path) -> None:
    """Seeds in the file are not judged again: these verdicts are made up."""
    file = tmp_path / "composed.jsonl"
    for seed in range(3):
        append(file, replace(ACCEPTED, seed=seed))

    done = command("--seeds", "0:3", "--out", str(file), "--json", "--floor", "1.0")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcomes"] == {"accepted": 3}


def test_a_wrong_answer_fails_and_is_named(tmp_path: Path) -> None:
    """Exit code 1, with the seed."""
    file = tmp_path / "composed.jsonl"
    append(file, replace(ACCEPTED, outcome="wrong", message="row 3 differs by 1e-2"))

    done = command("--seeds", "0:1", "--out", str(file))

    assert done.returncode == 1
    assert "seed 0: wrong: row 3 differs by 1e-2" in done.stdout


def test_a_range_of_seeds_is_required() -> None:
    """The message has an example."""
    done = command("--seeds", "5")

    assert done.returncode == 2
    assert "expected FIRST:END" in done.stderr
