"""`make chaos` in a small size: no session is lost while workers and servers are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_session_is_lost_whatever_is_killed() -> None:
    """Workers are killed, and the server itself, which is started again."""
    size = ["--sessions", "16", "--chunks", "24", "--hang-ups", "0.1", "--kill-seconds", "5", "--kills", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "chaos", "--trial", "disk", *size], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(line.strip().rsplit(maxsplit=1) for line in done.stdout.splitlines() if line.strip().count("  "))
    assert (rows["sessions finished"], rows["answers given"], rows["servers killed"]) == ("16", "384", "1")
    assert int(rows["workers killed"]) >= 1
    assert int(rows["of them answered as before"]) >= 1
