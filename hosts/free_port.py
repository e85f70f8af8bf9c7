"""Ports that must be free before a server starts."""

from __future__ import annotations

import errno
import socket

from ..inference.errors import ArchiveError

_OF_THE_PORT = {errno.EADDRINUSE, errno.EACCES, errno.EPERM}
"""Errors for which another port of the same host may be free."""


def check_free(host: str, port: int, origin: str = "") -> None:
    """Refuse a port that another process has, and an address that this host does not have; `origin` ends the message.

    Raises `ArchiveError`: it cannot be used.
    """
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except (OSError, UnicodeError) as error:  # the second: no name of a host can be like this
            reason = error.strerror if isinstance(error, OSError) else str(error)
            other = "port" if isinstance(error, OSError) and error.errno in _OF_THE_PORT else "host"
            raise ArchiveError(f"{host}:{port} cannot be used ({reason}): give another {other}{origin}") from error
