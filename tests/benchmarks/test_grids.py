"""The benchmark of grids finds that chosen lengths are the best."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tuned_lengths_reach_the_optimum_on_the_sample() -> None:
    """The program prints it for 8 and 16 lengths, beside powers of two."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "grids.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert (done.returncode, done.stderr) == (0, "")
    tuned = {int(row[0]): row[1:] for row in re.findall(r"(\d+)  tuned +([\d.]+) % +[\d.]+ % +([\d.]+) %", done.stdout)}
    assert tuned[8] == ("19.1", "19.1")
    assert tuned[16] == ("8.6", "8.6")
    assert re.search(r"powers of two +31\.2 %", done.stdout)
