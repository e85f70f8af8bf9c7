"""`make stress` in a small size, with and without faults."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]


def stress(*options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tools.stress", "--backend", "eager", *options]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)
def test_no_session_is_lost_whatever_is_killed() -> None:
    size = ("--minutes", "0.2", "--clients", "16", "--chunks", "24", "--kill-seconds", "5", "--kills", "1")
    done = stress("--trial", "disk", "--workers", "2", "--hang-ups", "0.1", *size)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "every law holds"
    assert "sent again: the client hung up" in done.stdout


@pytest.mark.timeout(300)
def test_good_requests_are_answered_and_bad_ones_refused_under_load() -> None:
    """No worker ends, and descriptors and threads stay.

    Memory is read and not required: caches still fill in so short a run.
    """
    done = stress("--faults", "no", "--minutes", "0.25", "--clients", "8")

    assert "good requests without the right answer" in done.stdout, done.stdout + done.stderr
    broken = [line for line in done.stdout.splitlines() if line.startswith("load: ")]
    assert [line for line in broken if "growth of memory" not in line] == []
    assert done.returncode == (1 if broken else 0)
