"""What packaging refuses. Each text is for the person who ran the command: what is wrong, what to do."""

from __future__ import annotations


class PackagingError(Exception):
    """The archive cannot be made from what was given."""
