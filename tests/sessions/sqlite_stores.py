"""Stores of one model on disk, and a process that writes beside them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore

LIMITS = Limits(sessions=1000, bytes=100_000_000, idle_seconds=900.0)
WRITER = Path(__file__).with_name("sqlite_writer.py")


def store_in(directory: Path) -> SqliteStore:
    return SqliteStore(directory, "tagger", LIMITS)


@contextmanager
def writer(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(WRITER), str(directory), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
