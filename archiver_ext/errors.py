"""Errors of packaging. Each message gives the cause and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..inference.errors import ArchiveError


class PackagingError(ArchiveError):
    """The archive cannot be made from these inputs."""


@contextmanager
def refusing(kinds: type[Exception] | tuple[type[Exception], ...], before: str = "", after: str = "") -> Iterator[None]:
    """Turn errors of these kinds into a `PackagingError` of their message, with words before and after it."""
    try:
        yield
    except kinds as error:
        raise PackagingError(f"{before}{error}{after}") from error
