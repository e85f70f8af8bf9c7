"""Readings of a process: memory, descriptors and threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Reading(NamedTuple):
    """A process at one time."""

    seconds: float
    """Since the begin of the load."""
    resident: float
    """Bytes of memory."""
    descriptors: int
    threads: int


def read_process(pid: int, seconds: float) -> Reading | None:
    """Read a process of this machine; None if there is none.

    >>> read_process(os.getpid(), 1.5).threads >= 1
    True
    """
    home = Path(f"/proc/{pid}")
    try:
        resident_pages = int((home / "statm").read_text().split()[1])
        return Reading(
            seconds,
            resident_pages * os.sysconf("SC_PAGE_SIZE"),
            len(list((home / "fd").iterdir())),
            len(list((home / "task").iterdir())),
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def parent(pid: int) -> int:
    """The process that started this one.

    >>> parent(os.getpid()) == os.getppid()
    True

    Raises:
        FileNotFoundError: there is no such process.
    """
    # the name, in brackets, may hold spaces
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
