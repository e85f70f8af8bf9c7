"""Errors of archives. Each message says what is wrong, and what to do."""

from __future__ import annotations


class ArchiveError(Exception):
    """An archive that cannot be made, read or opened."""
