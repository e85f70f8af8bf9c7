"""Sessions after SIGKILL at any moment, as clients see them; `make stress` does so to a server."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from .killed_worker import ids_from, send, service_in

PROGRAM = Path(__file__).with_name("killed_worker.py")
NAMES = ["a", "b", "c"]


def killed(folder: Path, seconds: float) -> list[list[str]]:
    """Run the program for so long after its first answer; return the words of its whole lines."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(folder), ",".join(NAMES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while len(lines[-1].split()) < 3:
            lines.append(process.stdout.readline())
            assert lines[-1]
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return [line.split() for line in lines if line.endswith("\n")]


def total_after(name: str, step: int) -> float:
    """The exact answer to the chunk that begins at a step: the sum of all ids up to its end."""
    found, begin = 0, 0
    while begin <= step:
        ids = ids_from(name, begin)
        found += sum(ids)
        begin += len(ids)
    return float(found)


def check(folder: Path, lines: list[list[str]]) -> None:
    """Check that each session is as acknowledged, or after the request in flight, and continues."""
    asked = dict.fromkeys(NAMES, 0) | {words[0]: int(words[1]) for words in lines}
    answered = [(words[0], int(words[1]), float(words[2])) for words in lines if len(words) == 3]
    assert [(name, step) for name, step, total in answered if total != total_after(name, step)] == []
    service = service_in(folder)
    # The last request of each session, answered or in flight, is sent again, twice: it is applied once.
    for _ in range(2):
        for name, (status, body) in zip(NAMES, send(service, NAMES, asked), strict=True):
            assert (status, body["total"]) == (200, total_after(name, asked[name]))
    after = {name: asked[name] + len(ids_from(name, asked[name])) for name in NAMES}
    for name, (status, body) in zip(NAMES, send(service, NAMES, after), strict=True):
        assert (status, body["total"]) == (200, total_after(name, after[name]))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.long)])
def test_a_killed_worker_leaves_sessions_that_continue_exactly(kills: int, tmp_path: Path) -> None:
    random = Random(2)
    for number in range(kills):
        lines = killed(tmp_path / f"{number}", random.uniform(0.0, 0.3))
        assert lines
        check(tmp_path / f"{number}", lines)
