"""Messages for errors of the system on files: the file, the cause, and what the user can do."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

_ADVICE = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room within your quota",
    errno.EROFS: "its disk is mounted read-only: choose another folder, or mount it writable",
    errno.EACCES: "change its permissions, or choose another folder",
    errno.EPERM: "change its permissions, or choose another folder",
    errno.EIO: "look for errors of its disk in the system's log",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def describe_file_error(error: OSError, written: Path | None = None) -> str:
    """Return the file, the cause and the advice as one line.

    `written` is the file that the user asked for, where it was being written: it is named first.

    >>> describe_file_error(OSError(errno.ENOSPC, "No space left on device", "/mnt/model.mar"))
    '/mnt/model.mar: no space left on device; make room on its disk'
    >>> describe_file_error(FileNotFoundError(errno.ENOENT, "No such file or directory"), Path("/none/new.mar"))
    '/none/new.mar cannot be written: there is no folder /none: make it, or name another one'
    """
    if written is not None and error.errno == errno.ENOENT and not written.absolute().parent.is_dir():
        return f"{written} cannot be written: there is no folder {written.parent}: make it, or name another one"
    if not error.strerror:
        return str(error) if written is None else f"{written} cannot be written: {error}"
    # The system names no file where reading or writing fails.
    file = error.filename2 or error.filename
    if file is None and written is None:
        file = f"a given file, standard output, or a temporary one in {tempfile.gettempdir()} (TMPDIR)"
    parts = [f"{written} cannot be written"] * (written is not None) + [str(file)] * (file is not None)
    return ": ".join([*parts, describe_cause(error)])


def describe_cause(error: OSError) -> str:
    """Return the cause and the advice, without the file.

    >>> describe_cause(OSError(errno.ENOSPC, "No space left on device", "/mnt/model.mar"))
    'no space left on device; make room on its disk'
    """
    cause = error.strerror or str(error)
    advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
    return f"{cause[:1].lower()}{cause[1:]}{advice}"


def is_of_the_disk(error: OSError) -> bool:
    """Whether the disk or its permissions are the cause, and the user can do something about it."""
    return error.errno in _ADVICE
