"""The temporary files and the end of a packaging process."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


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
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` sets it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, _raise_terminated) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
