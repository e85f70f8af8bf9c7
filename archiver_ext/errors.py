"""Errors of packaging. Each message tells the user of the command the cause and the remedy."""

from __future__ import annotations


class PackagingError(Exception):
    """The archive cannot be made from these inputs."""
