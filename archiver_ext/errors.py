"""Errors of packaging. Each message gives the cause and the remedy."""

from __future__ import annotations

from ..inference.errors import ArchiveError


class PackagingError(ArchiveError):
    """The archive cannot be made from these inputs."""
