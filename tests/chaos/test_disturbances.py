"""Disturbances: each lasts for a while, and ends; the machine's own clock and disks are not touched."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chaos import disturbances
from chaos.disturbances import Disturber, HostFaults
from chaos.tally import Tally

PROGRAM = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
def tried(act):
    try:
        act()
        return "done"
    except OSError as error:
        return error.strerror
print(round((time.time() - float(sys.argv[2])) / 3600), tried(lambda: (folder / "new").write_text("x")))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a server with its libraries."""
    work = tmp_path_factory.mktemp("work")
    (work / "sessions").mkdir()
    return HostFaults(work, work / "sessions").environment()


def seen(environment: dict[str, str], folder: str) -> str:
    """The hours by which the clock of a Python process is wrong, and the outcome of a write in a folder."""
    command = [sys.executable, "-c", PROGRAM, folder, str(time.time())]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("disk", "clock", "found"),
    [
        ("0", "0", "0 done"),
        ("0", "3600", "1 done"),
        ("0", "-3600", "-1 done"),
        ("4", "0", "0 No space left on device"),
        ("5", "0", "0 Read-only file system"),
    ],
)
def test_a_process_sees_the_disturbance_in_the_folder_of_sessions_only(
    environment: dict[str, str], tmp_path: Path, disk: str, clock: str, found: str
) -> None:
    """A file says what is disturbed; elsewhere writes succeed."""
    Path(environment["FAILING_FILES_CONTROL"]).write_text(disk)
    Path(environment["CHAOS_CLOCK"]).write_text(clock)

    assert seen(environment, environment["FAILING_FILES_BELOW"]) == found
    assert seen(environment, str(tmp_path)).partition(" ")[2] == "done"


def test_each_disturbance_is_made_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow each other for as long as the trial runs; a file is truncated once."""
    monkeypatch.setattr(disturbances, "_SECONDS", 0.001)
    made: list[str] = []

    def disturbance(name: str) -> disturbances.Disturbance:
        async def make() -> None:
            made.append(name)

        return make

    tally = Tally()

    async def trial() -> None:
        names = ("disk full", "file truncated")
        task = asyncio.create_task(Disturber({name: disturbance(name) for name in names}).run(tally))
        while made.count("disk full") < 3:  # noqa: ASYNC110 - a number, of which nobody tells
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(trial())

    assert made[:3] == ["disk full", "file truncated", "disk full"]
    assert made.count("file truncated") == 1
    assert tally.disturbances["disk full"] >= 2
