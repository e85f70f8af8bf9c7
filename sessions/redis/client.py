"""Client of Redis or Valkey servers: connecting, and what the servers' errors mean."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional

from ..settings import RedisSettings
from ..store import StoreFullError, StoreUnavailableError

NO_REPLY = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of reading what no Redis server replies: another server, or a proxy, is at the address."""


class Address(NamedTuple):
    """Address of one server."""

    host: str
    port: int


def check_package() -> None:
    """Check that the host has the client of servers.

    Raises:
        StoreUnavailableError: the package `redis` is missing.
    """
    try:
        import redis  # noqa: F401 - whether it is there
    except ImportError as error:
        raise StoreUnavailableError(
            f"sessions on a server need the package redis: pip install redis ({error})"
        ) from error


def make_connection(settings: RedisSettings, address: Address, seconds: float) -> Any:
    """Return a `redis.Connection` to a server, which is not connected yet.

    `seconds` limit the attempt to connect.

    Raises:
        StoreUnavailableError: the password is missing.
    """
    from redis.backoff import NoBackoff
    from redis.connection import Connection, SSLConnection
    from redis.retry import Retry

    tls: dict[str, Any] = {}
    if settings.server.tls:
        tls = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_ca_certs": settings.ca_file}
    return (SSLConnection if settings.server.tls else Connection)(
        host=address.host,
        port=address.port,
        db=settings.server.database,
        username=settings.username,
        password=_password(settings.password_env),
        socket_timeout=settings.timeout_seconds,
        socket_connect_timeout=seconds,
        retry=Retry(NoBackoff(), 0),  # the caller knows which commands may be repeated
        protocol=2,  # which all servers support
        **tls,
    )


def store_error(settings: RedisSettings, error: Exception, url: Optional[str] = None) -> StoreUnavailableError:
    """Convert an error of the client to one that says what an operator can do.

    `url` is the complete address of the server, where the settings name another one.
    """
    from redis import exceptions

    reason = str(error)
    if isinstance(error, exceptions.AskError):
        reason = f"slot {error.slot_id} moves to {error.node_addr[0]}:{error.node_addr[1]}"
    what = f"the session store {url or settings.server} cannot be used: {reason}"
    found = StoreUnavailableError(what)
    # Within a script it is an error of the script, which quotes it.
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM command not allowed" in str(error):
        found = StoreFullError(f"{what}; give the server more memory, or allow fewer sessions")
    elif isinstance(error, (exceptions.AuthenticationError, exceptions.NoPermissionError)):
        secret = f" and the password in {settings.password_env}" if settings.password_env else " and password_env"
        found = StoreUnavailableError(f"{what}; check the username{secret}")
    elif isinstance(error, exceptions.ReadOnlyError) or _says(error, "READONLY"):
        found = StoreUnavailableError(
            f"{what}; it is a replica, perhaps since a failover: give the address of the primary, or one that leads to "
            f"it"
        )
    elif isinstance(error, exceptions.BusyLoadingError) or _says(error, "LOADING"):
        found = StoreUnavailableError(f"{what}; it has started and reads its data, after which requests are answered")
    elif isinstance(error, exceptions.TimeoutError):
        found = StoreUnavailableError(f"{what}; it did not answer within {settings.timeout_seconds:g} seconds")
    elif "cluster support disabled" in str(error):
        found = StoreUnavailableError(f"{what}; it is not a node of a cluster: leave out cluster: true")
    elif not settings.cluster and (type(error).__name__ == "MovedError" or str(error).startswith("MOVED ")):
        found = StoreUnavailableError(f"{what}; it is a node of a cluster: set cluster: true")
    found.__cause__ = error
    return found


def _says(error: Exception, code: str) -> bool:
    """Whether an error has this code, also within the error of a script, which quotes it."""
    return f"{code} " in f"{error} "


def server_url(settings: RedisSettings, address: Address) -> str:
    """Return the complete address of a server, for messages."""
    return str(settings.server._replace(host=address.host, port=address.port))


def _password(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (password := os.environ.get(variable)):
        raise StoreUnavailableError(
            f"the environment variable {variable}, which holds the session store's password, is not set"
        )
    return password
