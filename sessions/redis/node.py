"""One connection to a Redis or Valkey server: pipelines of commands, whose replies are read later."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple, Optional

from ..settings import RedisSettings
from ..store import StoreFullError, StoreUnavailableError
from .scripts import TOTALS, WRITE
from .shard_commands import Command

_log = logging.getLogger(__name__)

NO_REPLY = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of reading what no Redis server replies: another server, or a proxy, is at the address."""


class Address(NamedTuple):
    """Address of one server."""

    host: str
    port: int


class Replies(NamedTuple):
    """Replies of a server to one pipeline; a command that was refused has its error."""

    values: list[Any]
    replicas: Optional[int]
    """Replicas that have the changes; None if the caller does not wait for them."""


class RedisNode:
    """One connection to one server, which has loaded the scripts.

    `seconds` limits the attempt to connect. Every method raises the errors of the package `redis` and of the system.
    Whatever is raised closes the connection, so that no call reads the replies to an earlier one.
    """

    def __init__(self, settings: RedisSettings, address: Address, seconds: float) -> None:
        self._connection = _make_connection(settings, address, seconds)
        self._commands, self._waits = 0, False
        deadline = monotonic() + seconds
        try:
            self._connection.connect()
            self.send([("INFO", "memory"), ("SCRIPT", "LOAD", WRITE), ("SCRIPT", "LOAD", TOTALS)], deadline)
            memory, *loaded = self.receive().values
            _raise_first(loaded)
            _warn_of_eviction(memory, server_url(settings, address))
        except BaseException as error:
            self.close()
            _raise_for_no_reply(error)
            raise

    def send(self, commands: Sequence[Command], deadline: float, replicas: int = 0) -> None:
        """Send commands at once. Their replies must be here, and `replicas` have their changes, by the deadline."""
        # Less than the time limit: the answer is the number of replicas, also if it is too small.
        wait = [("WAIT", replicas, max(1, int(800 * (deadline - monotonic()))))] if replicas else []
        self._commands, self._waits = len(commands), bool(wait)
        self._connection._sock.until = deadline  # noqa: SLF001 - ours
        self._connection.send_packed_command(self._connection.pack_commands([*commands, *wait]))

    def receive(self) -> Replies:
        """Return the replies to the commands that were sent."""
        try:
            values = [self._reply() for _ in range(self._commands)]
            replicas = _replica_count(self._reply()) if self._waits else None
        except BaseException as error:  # Ctrl-C comes between two replies, too
            self.close()
            _raise_for_no_reply(error)
            raise
        return Replies(values, replicas)

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _reply(self) -> Any:
        from redis import exceptions

        try:
            return self._connection.read_response()
        except exceptions.ResponseError as error:
            return error


class _TimedSocket:
    """A socket that is used until a deadline: for a server that sends byte by byte, each would begin a limit anew."""

    def __init__(self, connected: Any, until: float) -> None:
        self.connected, self.until = connected, until

    def __getattr__(self, name: str) -> Any:
        if name in ("recv", "recv_into", "sendall"):  # what has arrived is read after the deadline, too
            self.connected.settimeout(max(0.001, self.until - monotonic()))
        return getattr(self.connected, name)


def _use_timed_socket(connection: Any) -> None:
    connection._sock = _TimedSocket(connection._sock, monotonic() + connection.socket_connect_timeout)  # noqa: SLF001 - redis has no other way
    connection.on_connect()


def check_package() -> None:
    """Check that the host has the client of servers. Raises `StoreUnavailableError`: the package `redis` is missing."""
    try:
        import redis  # noqa: F401 - whether it is there
    except ImportError as error:
        raise StoreUnavailableError(
            f"sessions on a server need the package redis: pip install redis ({error})"
        ) from error


def store_error(settings: RedisSettings, error: Exception, url: str) -> StoreUnavailableError:
    """Convert an error of the client to one that says what an operator can do; `url` is the server's."""
    from redis import exceptions

    what = f"the session store {url} cannot be used: {error}"
    if isinstance(error, exceptions.AskError):  # or MovedError
        what = f"the session store {url} cannot be used: slot {error.slot_id} moves to {error.host}:{error.port}"
    advice = ""
    # Within a script it is an error of the script, which quotes it.
    is_full = isinstance(error, exceptions.OutOfMemoryError) or "OOM command not allowed" in str(error)
    if is_full:
        advice = "; give the server more memory, or allow fewer sessions"
    elif isinstance(error, (exceptions.AuthenticationError, exceptions.NoPermissionError)):
        secret = f" and the password in {settings.password_env}" if settings.password_env else " and password_env"
        advice = f"; check the username{secret}"
    elif isinstance(error, exceptions.ReadOnlyError) or "READONLY " in f"{error} ":
        advice = "; it is a replica, perhaps since a failover: give the address of the primary, or one that leads to it"
    elif isinstance(error, exceptions.BusyLoadingError) or "LOADING " in f"{error} ":
        advice = "; it has started and reads its data, after which requests are answered"
    elif isinstance(error, exceptions.TimeoutError):
        advice = f"; it did not answer within {settings.timeout_seconds:g} seconds"
    elif "cluster support disabled" in str(error):
        advice = "; it is not a node of a cluster: leave out cluster: true"
    elif not settings.cluster and isinstance(error, exceptions.MovedError):
        advice = "; it is a node of a cluster: set cluster: true"
    converted = (StoreFullError if is_full else StoreUnavailableError)(f"{what}{advice}")
    converted.__cause__ = error
    return converted


def server_url(settings: RedisSettings, address: Address) -> str:
    """Return the complete address of a server, for messages."""
    return str(settings.server._replace(host=address.host, port=address.port))


def _make_connection(settings: RedisSettings, address: Address, seconds: float) -> Any:
    """Return a `redis.Connection` to a server, which is not connected yet.

    `seconds` limit the attempt to connect.

    Raises `StoreUnavailableError`: the password is missing.
    """
    from redis import cluster
    from redis.backoff import NoBackoff
    from redis.connection import Connection, DefaultParser, SSLConnection
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
        redis_connect_func=_use_timed_socket,
        retry=Retry(NoBackoff(), 0),  # the caller knows which commands may be repeated
        protocol=2,  # which all servers support
        parser_class=getattr(cluster, "ClusterParser", DefaultParser),  # it has the errors of clusters, until release 8
        **tls,
    )


def _password(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (password := os.environ.get(variable)):
        raise StoreUnavailableError(
            f"the environment variable {variable}, which holds the session store's password, is not set"
        )
    return password


def _raise_first(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def _replica_count(reply: Any) -> int:
    _raise_first([reply])
    if not isinstance(reply, int):
        raise ValueError(f"WAIT: expected a number, got {reply!r}")  # noqa: TRY004 - as any other reply
    return reply


def _raise_for_no_reply(error: BaseException) -> None:
    """Raise the error of the package `redis` for a reply that it cannot read, which it raises other errors for."""
    from redis.exceptions import InvalidResponse

    if isinstance(error, NO_REPLY) and not isinstance(error, OSError):
        raise InvalidResponse(f"it does not reply as a Redis server does ({error})") from error


def _warn_of_eviction(memory: Any, url: str) -> None:
    # A server that evicts keys when its memory is full ends sessions without an error.
    if isinstance(memory, Exception):
        return  # the user may lack the right
    facts = dict(line.partition(":")[::2] for line in memory.decode("utf-8", "replace").splitlines())
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
        _log.warning(
            "the session store %s has maxmemory-policy %s: it removes open sessions when its memory is full; "
            "set it to noeviction, and new sessions are refused instead",
            url,
            policy,
        )
