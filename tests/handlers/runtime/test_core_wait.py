"""Waiting for cores, as the system counts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchserve_neuron_lstm.handlers.runtime.core_wait import waited_ms

SPIN = """
import os, sys, time
sys.path[:0] = sys.argv[1:]
from torchserve_neuron_lstm.handlers.runtime.core_wait import waited_ms
before, end = waited_ms(), time.perf_counter() + 0.5
while time.perf_counter() < end:
    pass
print(waited_ms() - before)
"""


def thread(folder: Path, name: str, text: str) -> None:
    """The `schedstat` of a thread."""
    (folder / name).mkdir(parents=True)
    (folder / name / "schedstat").write_text(text)


def test_the_waiting_of_all_threads_is_added_up(tmp_path: Path) -> None:
    """It is the second of three numbers, in nanoseconds."""
    thread(tmp_path, "11", "110244 2500000 2\n")
    thread(tmp_path, "12", "0 500000 1\n")

    assert waited_ms(tmp_path) == 3.0


def test_what_the_system_does_not_tell_is_nothing(tmp_path: Path) -> None:
    """Other systems have no such files, and threads end while they are read."""
    thread(tmp_path, "11", "0 0 0\n")
    thread(tmp_path, "12", "nonsense\n")
    (tmp_path / "13").mkdir()

    assert waited_ms(tmp_path) == 0.0
    assert waited_ms(tmp_path / "missing") == 0.0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux alone counts how long threads wait")
def test_a_process_that_shares_its_core_waits() -> None:
    """Two processes on one core: the second one has it for half of the time."""
    one_core = [sys.executable, "-c", "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"]
    hog = subprocess.Popen([*one_core[:2], one_core[2] + "while True: pass"])
    try:
        done = subprocess.run(
            [*one_core[:2], one_core[2] + SPIN, *sys.path], capture_output=True, text=True, check=False, env=os.environ
        )
    finally:
        hog.kill()
        hog.wait()

    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 20
