"""Private working directories, deleted afterwards in every case."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_log = logging.getLogger(__name__)


@contextmanager
def private_directory(parent: Path | None = None) -> Iterator[Path]:
    """Create a directory for this user alone, deleted at the end; by default among temporary files."""
    path = Path(tempfile.mkdtemp(prefix=".neuron-lstm-", dir=parent)).resolve()
    try:
        yield path
    finally:
        for _ in range(2):  # a disk may fail once
            shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            _log.warning("%s cannot be deleted: delete it yourself", path)


@contextmanager
def temporary_files_in(directory: Path) -> Iterator[None]:
    """Redirect the temporary files of engines to a directory, for Python and by TMPDIR.

    Afterwards the environment is restored: engines store paths in it, and would use them again.
    """
    before, environment = tempfile.tempdir, dict(os.environ)
    tempfile.tempdir, os.environ["TMPDIR"] = str(directory), str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before
        os.environ.clear()
        os.environ.update(environment)


class Terminated(BaseException):
    """Request to end the process, by `signal`."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that cleanup runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    before = {number: signal.signal(number, _raise_terminated) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
