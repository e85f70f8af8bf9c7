"""Ports that must be free before a server starts."""

from __future__ import annotations

import socket

from ..inference.errors import ArchiveError


def check_free(host: str, port: int) -> None:
    """Refuse a port that another process has.

    Raises:
        ArchiveError: it cannot be used.
    """
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise ArchiveError(f"{host}:{port} cannot be used ({error.strerror}): give another port") from error
