"""Temporary files and the end of a packaging process; files and folders that are replaced as a whole or not at all."""

from __future__ import annotations

import ctypes
import errno
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
from typing import BinaryIO

from ...inference.errors import ArchiveError
from ...inference.private_directory import private_directory
from ..errors import PackagingError


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


_log = logging.getLogger(__name__)

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def replace_atomically(finished: Path, destination: Path) -> None:
    """Move a file or a folder to a path where another may be, in the same file system.

    It is on the disk before: after a loss of power, one of both is there. An old folder is at `finished` then.

    Raises `OSError`, or `PackagingError` if the file system cannot exchange folders: the old one is in its place.
    """
    for path in finished.rglob("*") if finished.is_dir() else [finished]:
        if path.is_file() and not path.is_symlink():
            _write_to_disk(path)
    if finished.is_dir() and destination.exists():
        exchange(finished, destination)
    else:
        os.replace(finished, destination)  # noqa: PTH105 - Path.replace does the same, without saying that it is one step
    try:
        _write_to_disk(destination.parent)
    except OSError as error:
        _log.warning("%s is complete, but a loss of power may still bring back what was there: %s", destination, error)


def _write_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Exchange two paths of one file system in one step: renameat2(2).

    Raises `OSError`, or `PackagingError` if the system cannot exchange paths: both are where they were.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other)
    if rename is not None and rename(*paths, _RENAME_EXCHANGE) == 0:
        return
    number = errno.ENOSYS if rename is None else ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):
        raise PackagingError(f"{other} cannot be replaced in one step on its file system: write to another path")
    raise OSError(number, os.strerror(number), str(other))


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write; one that exists is replaced at the end, in one step.

    A link stays, and a device is written to directly.

    Raises `ArchiveError`: its folder does not exist.
    Raises `OSError`: it cannot be written; the file before is as it was.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    destination = path.resolve()
    if not destination.parent.is_dir():
        raise ArchiveError(f"there is no folder {path.parent}")
    with private_directory(destination.parent) as beside:
        written = beside / destination.name
        with written.open("wb") as file:
            yield file
        if destination.exists():
            shutil.copymode(destination, written)
        replace_atomically(written, destination)


def write_output(path: Path, content: bytes) -> None:
    """Write a file as `open_output` does. Raises `ArchiveError`, `OSError`: as `open_output`."""
    with open_output(path) as file:
        file.write(content)
