"""Readings of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from soak.readings import read_process


def test_what_a_process_takes_is_read(tmp_path: Path) -> None:
    """Its memory, descriptors and threads, each after more of it was taken."""
    before = read_process(os.getpid(), 0.0)
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    taken = bytearray(os.urandom(1 << 20) * 32)
    with (tmp_path / "file").open("wb"):
        after = read_process(os.getpid(), 1.0)
    release.set()
    thread.join()

    assert before is not None
    assert after is not None
    assert after.descriptors == before.descriptors + 1
    assert after.threads == before.threads + 1
    assert after.resident - before.resident > 0.9 * len(taken)


def test_a_process_that_ended_has_no_reading() -> None:
    """It is told apart from one that takes nothing."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        ended = process.pid

    assert read_process(ended, 0.0) is None
