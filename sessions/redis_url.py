"""Addresses of Redis servers as URLs."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

_PORT = 6379


class RedisUrl(NamedTuple):
    """A database of one server.

    >>> str(RedisUrl("::1", 6379, 2, tls=True))
    'rediss://[::1]:6379/2'
    """

    host: str
    port: int
    database: int
    tls: bool
    """Whether the connection is encrypted."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"


def read_redis_url(text: str) -> RedisUrl:
    """Read `redis://HOST:PORT/DATABASE`, or `rediss://` for TLS.

    >>> read_redis_url("redis://cache/1")
    RedisUrl(host='cache', port=6379, database=1, tls=False)

    Raises:
        ValueError: it is no such address.
    """
    try:
        return _read(urlsplit(text))
    except ValueError:
        raise ValueError(f"expected redis://HOST:PORT/DATABASE, or rediss:// for TLS, got {text[:60]!r}") from None


def _read(parts: SplitResult) -> RedisUrl:
    port = _PORT if parts.port is None else parts.port  # one that is no number, or too large, raises ValueError
    database = parts.path.strip("/") or "0"
    has_server = parts.scheme in ("redis", "rediss") and parts.hostname and port > 0
    if not has_server or not (database.isascii() and database.isdigit()) or parts.query or parts.fragment:
        raise ValueError
    return RedisUrl(parts.hostname or "", port, int(database), parts.scheme == "rediss")
