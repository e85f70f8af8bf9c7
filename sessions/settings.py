"""Settings of streaming sessions: their store, its address, their limits and the names of their request fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Optional
from urllib.parse import SplitResult, urlsplit

PARTITIONS = 16
"""Partitions of a model's sessions on a cluster. With another number, sessions that are stored would not be found."""


@dataclass(frozen=True)
class Limits:
    """Limits of one model's sessions."""

    sessions: int
    """Open sessions; ended ones do not count."""
    bytes: int
    """Size of all records, those of ended sessions included."""
    idle_seconds: float
    """Time without a request after which a session expires."""
    retry_seconds: float = 60.0
    """Time after the end of a session in which its last request can be repeated."""
    confirm_seconds: float = 60.0
    """Time after a start without an id in which the second request must come.

    Until then the session is unconfirmed: any client can start many of them at no cost.
    """
    client_sessions: Optional[int] = None
    """Open sessions of one client, where the host names the client; None: no limit."""

    @property
    def lifetime(self) -> float:
        """Time without a request after which an unconfirmed session expires."""
        return min(self.confirm_seconds, self.idle_seconds)

    @property
    def unconfirmed(self) -> int:
        """Limit of unconfirmed sessions: an eighth of all is left for clients that choose their ids."""
        return self.sessions - self.sessions // 8

    @property
    def own_bytes(self) -> int:
        """Size up to which an open session's record can always be stored: its part of a quarter of `bytes`."""
        return self.bytes // (4 * max(1, self.sessions))

    @property
    def common_bytes(self) -> int:
        """Size of all records up to which sessions start, and records grow beyond `own_bytes`.

        Beyond it, each of `sessions` may still grow to `own_bytes`, and all records together never exceed `bytes`.
        """
        return self.bytes - self.sessions * self.own_bytes

    @property
    def unconfirmed_bytes(self) -> int:
        """Size of all records up to which unconfirmed sessions start."""
        return self.common_bytes - self.common_bytes // 8


@dataclass(frozen=True)
class SessionFields:
    """Names of the headers and JSON fields of a session."""

    id: str = "ts_request_sequence_id"
    start: str = "ts_request_sequence_start"
    end: str = "ts_request_sequence_end"
    step: str = "ts_request_sequence_step"
    token: str = "ts_request_sequence_token"  # noqa: S105 - a field's name


@dataclass(frozen=True)
class RedisSettings:
    """Connection to a Redis or Valkey server. Its password is in no file: the environment has it.

    >>> RedisSettings("rediss://sessions.example:6380/1", username="neuron", password_env="SESSIONS_PASSWORD").server
    RedisUrl(host='sessions.example', port=6380, database=1, tls=True)

    Raises `ValueError`: a setting is wrong; begins with its name.
    """

    url: str
    """`redis://HOST:PORT/DATABASE`, or `rediss://` for TLS. Of any node of a cluster."""
    username: Optional[str] = None
    password_env: Optional[str] = None
    """The environment variable that holds the password."""
    ca_file: Optional[str] = None
    """Certificate of the authority that signed the server's. None for the authorities that the system trusts."""
    timeout_seconds: float = 1.0
    """Time limit of a connection attempt, and of a response."""
    replicas: int = 0
    """Replicas that must have a change before its request is answered."""
    cluster: bool = False
    """Whether the server is one node of a cluster; the client finds the others."""

    def __post_init__(self) -> None:
        for key, message in redis_setting_errors(vars(self)):
            raise ValueError(f"{key}: {message}")
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds: expected more than 0, got {self.timeout_seconds}")
        if self.replicas < 0:
            raise ValueError(f"replicas: expected 0 or more, got {self.replicas}")

    @property
    def server(self) -> RedisUrl:
        """The address in its parts."""
        return _read_redis_url(self.url)


@dataclass(frozen=True)
class SessionSettings:
    """Settings of one model's sessions. Raises `ValueError`: a setting is wrong; begins with its name."""

    store: Literal["disk", "redis", "client"]
    state: str
    """32 hex digits; archives that have the same can resume each other's sessions."""
    directory: Optional[str] = None
    redis: Optional[RedisSettings] = None
    key_env: Optional[str] = None
    idle_seconds: float = 600.0
    max_sessions: int = 10_000
    max_bytes: int = 2**30
    fields: Annotated[SessionFields, "no other keys"] = SessionFields()
    confirm_seconds: float = Limits.confirm_seconds
    client_header: Optional[str] = None
    """The header in which the host names the client; None: it names none."""
    client_sessions: int = 100
    token_seconds: float = 86_400.0
    """Time after which a session token expires."""

    def __post_init__(self) -> None:
        if len(self.state) != 32 or set(self.state) - set("0123456789abcdef"):
            raise ValueError(f"state: expected 32 hex digits, got {self.state[:60]!r}")
        for key in ("idle_seconds", "max_sessions", "max_bytes", "confirm_seconds", "client_sessions", "token_seconds"):
            if not (value := getattr(self, key)) > 0:
                raise ValueError(f"{key}: expected a positive number, got {value}")
        if (self.store == "redis") != (self.redis is not None):
            raise ValueError(f"redis: expected with store redis and with no other, got it with store {self.store}")
        if self.redis is not None and self.redis.cluster:
            for key, message in cluster_limit_errors({"max_sessions": self.max_sessions, "max_bytes": self.max_bytes}):
                raise ValueError(f"{key}: {message}")

    @property
    def limits(self) -> Limits:
        """The limits that a store keeps to."""
        of_client = None if self.client_header is None else self.client_sessions
        return Limits(
            self.max_sessions,
            self.max_bytes,
            self.idle_seconds,
            confirm_seconds=self.confirm_seconds,
            client_sessions=of_client,
        )


def normalize_field_name(name: str) -> str:
    """Convert a field's name to the form in which names are compared.

    Proxies change case, and clients write `-` for `_`.

    >>> normalize_field_name("X-Session")
    'x_session'
    """
    return name.lower().replace("-", "_")


def redis_setting_errors(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, message) for each wrong setting of a Redis server. No message repeats a password.

    >>> list(redis_setting_errors({"url": "rediss://cache/0", "username": "neuron"}))
    [('password_env', 'is missing: a username needs the environment variable that holds its password')]
    """
    url = settings.get("url")
    if isinstance(url, str):
        if "@" in url:
            expected = (
                "expected no user and no password in the address: everyone can read an archive; give the user as "
                "username, and in password_env the environment variable that holds the password"
            )
            yield "url", expected
        else:
            yield from _address_errors(url, settings)
    if settings.get("username") is not None and settings.get("password_env") is None:
        yield "password_env", "is missing: a username needs the environment variable that holds its password"


def _address_errors(url: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    try:
        server = _read_redis_url(url)
    except ValueError as error:
        yield "url", str(error)
        return
    if settings.get("ca_file") is not None and not server.tls:
        yield "ca_file", "expected none without TLS: the address begins with redis://"
    elif settings.get("cluster") is True and server.database:
        yield "url", f"expected database 0 with cluster: true, got {url[:60]!r}: a cluster has no other"


def cluster_limit_errors(limits: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, message) for each limit that leaves nothing to a partition of a cluster.

    >>> list(cluster_limit_errors({"max_sessions": 15, "max_bytes": 2**20}))
    [('max_sessions', 'expected 16 or more with cluster: true, got 15: each of 16 partitions has its share')]
    """
    for key, limit in limits.items():
        if type(limit) is int and limit < PARTITIONS:
            share = f"each of {PARTITIONS} partitions has its share"
            yield key, f"expected {PARTITIONS} or more with cluster: true, got {limit}: {share}"


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


def _read_redis_url(text: str) -> RedisUrl:
    """Read `redis://HOST:PORT/DATABASE`, or `rediss://` for TLS.

    >>> _read_redis_url("redis://cache/1")
    RedisUrl(host='cache', port=6379, database=1, tls=False)

    Raises `ValueError`: it is no such address.
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
