"""One connection to a Redis or Valkey server: pipelines of commands, whose replies are read later."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple, Optional

from ..settings import RedisSettings
from ..store import StoreUnavailableError
from .client import NO_REPLY, Address, make_connection, server_url
from .partition import Command

_log = logging.getLogger(__name__)


_TIME = ("TIME",)
"""Command with the same reply for all partitions of a server, so that it is sent once."""


class Replies(NamedTuple):
    """Replies of a server to one pipeline; a command that was refused has its error."""

    values: list[Any]
    replicas: Optional[int]
    """Replicas that have the changes; None if the caller does not wait for them."""


class RedisNode:
    """One connection to one server.

    `seconds` limits the attempt to connect. Every method raises the errors of the package `redis` and of the system.
    Whatever is raised closes the connection, so that no call reads the replies to an earlier one.
    """

    def __init__(self, settings: RedisSettings, address: Address, seconds: float) -> None:
        self._connection = make_connection(settings, address, seconds)
        self._commands: Sequence[Command] = ()
        self._wait: tuple[int, int] | None = None
        try:
            self._connection.connect()
            _warn_of_eviction(self, server_url(settings, address), monotonic() + seconds)
        except BaseException as error:
            self.close()
            _raise_for_no_reply(error)
            raise

    def send(self, commands: Sequence[Command], replicas: int = 0, seconds: float = 0.0) -> None:
        """Send commands at once; `replicas` must have their changes within about `seconds`."""
        # Less than the time limit: the answer is the number of replicas, also if it is too small.
        wait = (replicas, max(1, int(800 * seconds))) if replicas else None
        self._commands, self._wait = commands, wait
        self._send(commands)

    def receive(self, deadline: Optional[float] = None) -> Replies:
        """Return the replies to the commands that were sent.

        Scripts that the server does not know are loaded, and called again.
        """
        try:
            return self._receive_replies(deadline)
        except BaseException as error:  # Ctrl-C comes between two replies, too
            self.close()
            _raise_for_no_reply(error)
            raise

    def _receive_replies(self, deadline: float | None) -> Replies:
        """Receive the replies; load scripts that the server does not know, and send their commands again."""
        from redis.exceptions import NoScriptError

        commands = self._commands
        values, have = self._receive(commands, deadline)
        unknown = [index for index, value in enumerate(values) if isinstance(value, NoScriptError)]
        if unknown:
            scripts = {script for index in unknown if (script := commands[index].script) is not None}
            loads = [Command(("SCRIPT", "LOAD", script)) for script in scripts]
            again = [*loads, *(commands[index] for index in unknown)]
            self._send(again)
            repeated, have = self._receive(again, deadline)
            refused = next((one for one in repeated[: len(loads)] if isinstance(one, Exception)), None)
            for index, value in zip(unknown, repeated[len(loads) :]):
                values[index] = refused or value
        return Replies(values, have)

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _send(self, commands: Sequence[Command]) -> None:
        words: list[tuple[Any, ...]] = []
        for command in commands:
            if command.words != _TIME or _TIME not in words:
                words.append(command.words)
        if self._wait is not None:
            words.append(("WAIT", *self._wait))
        self._connection.send_packed_command(self._connection.pack_commands(words))

    def _receive(self, commands: Sequence[Command], deadline: float | None) -> Replies:
        values: list[Any] = []
        time: Any = None
        for command in commands:
            if command.words == _TIME and time is not None:
                values.append(time)
                continue
            values.append(self._reply(deadline))
            time = values[-1] if command.words == _TIME else time
        have = None if self._wait is None else self._reply(deadline)
        if isinstance(have, Exception):
            raise have
        if not (have is None or isinstance(have, int)):
            raise ValueError(f"WAIT: expected a number, got {have!r}")
        return Replies(values, have)

    def _reply(self, deadline: float | None) -> Any:
        from redis import exceptions

        if deadline is not None and not self._connection.can_read(max(0.0, deadline - monotonic())):
            raise exceptions.TimeoutError("no reply")
        try:
            return self._connection.read_response()
        except exceptions.ResponseError as error:
            return error


def too_few_replicas(settings: RedisSettings, url: str, replies: Replies) -> StoreUnavailableError | None:
    """Return the error of changes that too few replicas have; None if enough have them."""
    if replies.replicas is None or replies.replicas >= settings.replicas:
        return None
    return StoreUnavailableError(
        f"the session store {url} has {replies.replicas} replicas that are up to date, and replicas: "
        f"{settings.replicas} are expected; a change may be lost in a failover"
    )


def _raise_for_no_reply(error: BaseException) -> None:
    """Raise the error of the package `redis` for a reply that it cannot read, which it raises other errors for."""
    from redis.exceptions import InvalidResponse

    if isinstance(error, NO_REPLY) and not isinstance(error, OSError):
        raise InvalidResponse(f"it does not reply as a Redis server does ({error})") from error


def _warn_of_eviction(node: RedisNode, url: str, deadline: float) -> None:
    # A server that evicts keys when its memory is full ends sessions without an error.
    node.send([Command(("INFO", "memory"))])
    (text,) = node.receive(deadline).values
    if isinstance(text, Exception):
        return  # the user may lack the right
    memory = dict(line.partition(":")[::2] for line in text.decode("utf-8", "replace").splitlines())
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and memory.get("maxmemory", "0") != "0":
        _log.warning(
            "the session store %s has maxmemory-policy %s: it removes open sessions when its memory is full; "
            "set it to noeviction, and new sessions are refused instead",
            url,
            policy,
        )
