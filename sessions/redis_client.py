"""The way to a Redis or Valkey server: where it is, who we are, and what its errors mean."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from .store import StoreFullError, StoreUnavailableError

if TYPE_CHECKING:
    from redis import Redis


@dataclass(frozen=True)
class RedisSettings:
    """How to reach the server. Its password is in no file: the environment has it.

    >>> RedisSettings("rediss://sessions.example:6380/1", username="neuron", password_env="SESSIONS_PASSWORD").address
    'rediss://sessions.example:6380/1'
    """

    url: str
    """`redis://HOST:PORT/DATABASE`, or `rediss://` for TLS."""
    username: str | None = None
    password_env: str | None = None
    """The environment variable that holds the password."""
    ca_file: str | None = None
    """Of the authority that has signed the server's certificate; None for those that the system trusts."""
    timeout_seconds: float = 1.0
    """For a connection, and for an answer."""

    def __post_init__(self) -> None:
        if wrong := _wrong_url(self.url) or _wrong_identity(self):
            raise ValueError(wrong)

    @property
    def address(self) -> str:
        """Where it is, for people."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port or 6379}/{_database(parts)}"


def connect(settings: RedisSettings) -> Redis:
    """A client of the server. It connects with the first command.

    Raises:
        StoreUnavailable: the password or the package `redis` is not there.
    """
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise StoreUnavailableError(
            f"sessions on a server need the package redis: pip install redis ({error})"
        ) from error
    parts = urlsplit(settings.url)
    tls: dict[str, Any] = {}
    if parts.scheme == "rediss":
        tls = {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_ca_certs": settings.ca_file}
    return Redis(
        host=parts.hostname or "",
        port=parts.port or 6379,
        db=_database(parts),
        username=settings.username,
        password=_password(settings.password_env),
        socket_timeout=settings.timeout_seconds,
        socket_connect_timeout=settings.timeout_seconds,
        retry=Retry(NoBackoff(), 0),  # whoever asks knows what may be asked twice
        protocol=2,  # that all servers speak
        **tls,
    )


def store_error(settings: RedisSettings, error: Exception) -> StoreUnavailableError:
    """What an error of the client means, and what can be done about it."""
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


def _wrong_url(url: str) -> str | None:
    """What an operator must change. It repeats no password."""
    try:
        parts = urlsplit(url)
        port, database = parts.port, _database(parts)
    except ValueError as error:
        return f"the session store's url cannot be read: {error}"
    if "@" in parts.netloc:
        return "the session store's url must not hold a name or a password: give `username` and `password_env`"
    whole = parts.scheme in ("redis", "rediss") and parts.hostname and not parts.query and not parts.fragment
    if not whole or port == 0 or database < 0:
        return "the session store's url must be redis://HOST:PORT/DATABASE, or rediss:// for TLS"
    return None


def _wrong_identity(settings: RedisSettings) -> str | None:
    if settings.ca_file is not None and not settings.url.startswith("rediss:"):
        return "a `ca_file` is for a session store over TLS: its url begins with rediss://"
    if settings.username is not None and settings.password_env is None:
        return "a `username` needs a `password_env`, the environment variable that holds its password"
    if not settings.timeout_seconds > 0:
        return f"`timeout_seconds` must be positive, got {settings.timeout_seconds}"
    return None


def _database(parts: SplitResult) -> int:
    """Its number; -1 where it has none."""
    name = parts.path.strip("/")
    if not name:
        return 0
    return int(name) if name.isascii() and name.isdigit() else -1
