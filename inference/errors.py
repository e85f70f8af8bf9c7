"""Errors of archives. Each message says what is wrong, and what to do."""

from __future__ import annotations


class ArchiveError(Exception):
    """An archive that cannot be made, read or opened."""


class NamelessArchiveError(ArchiveError):
    """An archive that does not say what its model is called."""


HOST_ERRORS = (RuntimeError, OSError, MemoryError)
"""Errors of loading an archive on a host that cannot run it. A MemoryError may have no message."""
