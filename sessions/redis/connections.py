"""Connections to the servers of a store, and the simplest of them: one server has all keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, Union

from ..settings import RedisSettings
from ..store import StoreUnavailableError
from .client import Address, check_package, store_error
from .node import RedisNode, Replies, too_few_replicas
from .partition import Command

Answer = Union["list[Any]", StoreUnavailableError]
"""The replies to the commands of one partition, or why there are none."""


class Connections(Protocol):
    """Connections to the servers that have the partitions of a store."""

    repeated: Collection[int]
    """Partitions whose commands a server may have run before the last call sent them again."""

    def ask(
        self, requests: Mapping[int, Sequence[Command]], replicas: int = 0, hurried: frozenset[int] = frozenset()
    ) -> dict[int, Answer]:
        """Send the commands of each partition, and return its answer.

        `replicas` of each server must have the changes before its answer counts. The call does not wait for a `hurried`
        partition while its server cannot be reached.

        Raises:
            StoreUnavailableError: the password or the package `redis` is missing.
        """

    def close(self) -> None:
        """Close the connections; the next call connects again."""


class OneServer:
    """The connection to a server that has all keys; implements `Connections`.

    The first call connects, and so does the next call after an error. A pipeline is repeated once if the connection was
    closed since its last use.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._node: RedisNode | None = None
        self.repeated: Collection[int] = ()

    def ask(
        self,
        requests: Mapping[int, Sequence[Command]],
        replicas: int = 0,
        hurried: frozenset[int] = frozenset(),
    ) -> dict[int, Answer]:
        """Send the commands of each partition in one pipeline, as `Connections.ask`."""
        check_package()
        from redis import exceptions

        self.repeated = ()
        commands = [command for partition in requests.values() for command in partition]
        try:
            try:
                replies = self._exchange(commands, replicas)
            except exceptions.ConnectionError:
                self.repeated = () if self._node is None else requests.keys()  # without a node, nothing was sent
                self.close()
                replies = self._exchange(commands, replicas)
            for value in replies.values:
                if isinstance(value, Exception):
                    raise value
        except (exceptions.RedisError, OSError) as error:
            self.close()
            return dict.fromkeys(requests, store_error(self._settings, error))
        if (few := too_few_replicas(self._settings, str(self._settings.server), replies)) is not None:
            return dict.fromkeys(requests, few)
        values = iter(replies.values)
        return {partition: [next(values) for _ in part] for partition, part in requests.items()}

    def close(self) -> None:
        """Close the connection; the next call connects again."""
        if self._node is not None:
            node, self._node = self._node, None
            node.close()

    def _exchange(self, commands: Sequence[Command], replicas: int) -> Replies:
        settings = self._settings
        if self._node is None:
            address = Address(settings.server.host, settings.server.port)
            self._node = RedisNode(settings, address, settings.timeout_seconds)
        self._node.send(commands, replicas, settings.timeout_seconds)
        return self._node.receive()
