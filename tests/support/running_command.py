"""A `neuron-lstm` command that runs until it is ended, and what it leaves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULE = "torchserve_neuron_lstm.archiver_ext.cli"
SECONDS = 120
LAST_LINE = "Ctrl-C ends it."


@dataclass(frozen=True)
class Command:
    """A running command, in a process group of its own."""

    process: subprocess.Popen[str]
    log: Path
    mark: str
    """A variable of its environment, and of all processes that it starts."""

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_until_served(self) -> None:
        until = time.monotonic() + SECONDS
        while LAST_LINE not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < until, self.text
            time.sleep(0.2)

    def end(self, by: signal.Signals) -> int:
        """Send a signal to the whole group, as a terminal does, and return the exit code."""
        os.killpg(self.process.pid, by)
        return self.process.wait(SECONDS)

    def left(self) -> list[str]:
        """The command lines of its processes that still run, after a while."""
        until = time.monotonic() + 20
        while (found := processes_with(self.mark)) and time.monotonic() < until:
            time.sleep(0.2)
        return found


def processes_with(mark: str) -> list[str]:
    """The command lines of processes that have a variable in their environment."""
    return [command for folder in Path("/proc").glob("[0-9]*") if (command := command_with(mark, folder))]


def command_with(mark: str, folder: Path) -> str:
    """The command line of a process with the variable; "" for another one, or one that ended."""
    try:
        marked = mark.encode() in (folder / "environ").read_bytes()
        return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode() if marked else ""
    except OSError:
        return ""


@contextmanager
def started(folder: Path, *words: str, **variables: str) -> Iterator[Command]:
    """Run the command with these words, and kill it in the end. Its output goes to `log` in the folder."""
    mark = f"MARK_OF_TEST={folder}"
    environment = {**os.environ, "MARK_OF_TEST": str(folder), **variables}
    log = folder / "log"
    with log.open("w") as file:
        command = [sys.executable, "-m", MODULE, *words]
        process = subprocess.Popen(
            command, stdout=file, stderr=file, text=True, env=environment, start_new_session=True
        )
    try:
        yield Command(process, log, mark)
    finally:
        process.kill()
        process.wait()
