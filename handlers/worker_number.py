"""Which of an archive's workers a process is: the least number that no other living one has.

A number is a file that its process has locked. The system unlocks it when the process ends, however it ends: the worker
that takes its place finds the number free.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from hashlib import sha256
from itertools import count
from pathlib import Path

from ..config.manifest import FILE_NAME


def take_number(directory: Path) -> int:
    """The least number that is free in `directory`, from 0 on; it is this process's until it ends.

    Raises:
        OSError: the files cannot be made or locked.
    """
    for number in count():
        # Never closed: the lock goes with the last descriptor.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(directory / str(number), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return number
    raise AssertionError  # for the type checker: there is always a further number


def numbers_of(archive: Path) -> Path:
    """The directory for the numbers of an unpacked archive's workers, private to the user who runs them.

    It goes by what the archive is, not by where it lies: two servers of one archive share one host's cores.

    Raises:
        OSError: it cannot be made.
        RuntimeError: somebody else has put something in its place.
    """
    which = sha256((archive / FILE_NAME).read_bytes()).hexdigest()[:32]
    directory = Path(tempfile.gettempdir()) / f"neuron-lstm-workers-{os.geteuid()}-{which}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise RuntimeError(f"{directory} is not this user's own directory: remove it, or set TMPDIR to a private one")
    return directory
