"""Client of a Redis or Valkey server: connecting, and what the server's errors mean."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .settings import RedisSettings
from .store import StoreFullError, StoreUnavailableError

if TYPE_CHECKING:
    from redis import Redis


def connect(settings: RedisSettings) -> Redis:
    """Return a client of the server. It connects with the first command.

    Raises:
        StoreUnavailableError: the password or the package `redis` is missing.
    """
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise StoreUnavailableError(
            f"sessions on a server need the package redis: pip install redis ({error})"
        ) from error
    tls: dict[str, Any] = {}
    if settings.tls:
        tls = {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_ca_certs": settings.ca_file}
    return Redis(
        host=settings.host,
        port=settings.port,
        db=settings.database,
        username=settings.username,
        password=_password(settings.password_env),
        socket_timeout=settings.timeout_seconds,
        socket_connect_timeout=settings.timeout_seconds,
        retry=Retry(NoBackoff(), 0),  # the caller knows which commands may be repeated
        protocol=2,  # which all servers support
        **tls,
    )


def store_error(settings: RedisSettings, error: Exception) -> StoreUnavailableError:
    """Convert an error of the client to one that says what an operator can do."""
    from redis import exceptions

    what = f"the session store {settings.address} cannot be used: {error}"
    # Within a script it is an error of the script, which quotes it.
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM command not allowed" in str(error):
        return StoreFullError(f"{what}; give the server more memory, or allow fewer sessions")
    if isinstance(error, (exceptions.AuthenticationError, exceptions.NoPermissionError)):
        secret = f" and the password in {settings.password_env}" if settings.password_env else " and password_env"
        return StoreUnavailableError(f"{what}; check the username{secret}")
    if isinstance(error, exceptions.TimeoutError):
        return StoreUnavailableError(f"{what}; it did not answer within {settings.timeout_seconds:g} seconds")
    return StoreUnavailableError(what)


def _password(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (password := os.environ.get(variable)):
        raise StoreUnavailableError(
            f"the environment variable {variable}, which holds the session store's password, is not set"
        )
    return password
