"""Connections to the shards of a Redis or Valkey cluster, and one round of commands to all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Union

from ..settings import RedisSettings
from ..store import StoreUnavailableError
from .client import NO_REPLY, Address, server_url, store_error
from .node import RedisNode, too_few_replicas
from .partition import Command
from .topology import Later, Redirection, Topology, read_answer, read_topology

Result = Union["list[Any]", StoreUnavailableError, Redirection, Later]
"""Replies to the commands of one partition, a final error, or the reason to send them again."""


class Shards:
    """One connection to each server that has a partition; `slots` has the slot of each partition."""

    def __init__(self, settings: RedisSettings, slots: Sequence[int]) -> None:
        self._settings = settings
        self._slots = slots
        self._first = Address(settings.server.host, settings.server.port)
        self._nodes: dict[Address, RedisNode] = {}
        self._known: tuple[Address, ...] = ()
        self._owners: dict[int, Address] = {}
        self._why_unknown: StoreUnavailableError | Later | None = None

    def ask(self, requests: Mapping[int, Sequence[Command]], replicas: int, deadline: float) -> dict[int, Result]:
        """Send the commands of all partitions to their servers, then read all replies."""
        results: dict[int, Result] = {}
        shards: dict[Address, dict[int, Sequence[Command]]] = {}
        for partition, commands in requests.items():
            address = self._owners.get(partition)
            if address is None:
                results[partition] = self._without_owner(partition)
            else:
                shards.setdefault(address, {})[partition] = commands
        sent: list[Address] = []
        for address, partitions in shards.items():
            failure = self._send(address, partitions, replicas, deadline)
            results.update({} if failure is None else dict.fromkeys(partitions, failure))
            sent += [address] if failure is None else []
        for address in sent:
            results.update(self._receive(address, shards[address], deadline))
        return results

    def refresh(self, deadline: float, avoided: Iterable[Address] = ()) -> None:
        """Ask a server for the topology: one that is connected before others, and `avoided` ones last."""
        last = set(avoided)
        known = dict.fromkeys((*self._nodes, *self._owners.values(), *self._known, self._first))
        for address in sorted(known, key=lambda address: address in last):
            found = self._topology(address, deadline)
            if isinstance(found, Topology):
                self._known = found.nodes
                owners = ((partition, found.owner(slot)) for partition, slot in enumerate(self._slots))
                self._owners = {partition: owner for partition, owner in owners if owner is not None}
                self._why_unknown = None
                return
            self._why_unknown = found
            if monotonic() >= deadline:
                return

    @property
    def connected(self) -> set[Address]:
        """The servers with a connection that has not failed."""
        return set(self._nodes)

    @property
    def owners(self) -> Mapping[int, Address]:
        """The server of each partition, as far as it is known."""
        return self._owners

    def move(self, partition: int, address: Address) -> None:
        """Assume that a server has a partition."""
        self._owners[partition] = address

    def close(self) -> None:
        """Close the connections; the next round connects again."""
        for address in [*self._nodes]:
            self._drop(address)

    def _send(
        self, address: Address, partitions: Mapping[int, Sequence[Command]], replicas: int, deadline: float
    ) -> StoreUnavailableError | Later | None:
        from redis.exceptions import RedisError

        try:
            node = self._node(address, deadline)
            every = [command for commands in partitions.values() for command in commands]
            node.send(every, replicas, max(0.0, deadline - monotonic()))
        except (RedisError, OSError) as error:
            return self._failure(address, error, sent=address in self._nodes)
        return None

    def _receive(
        self, address: Address, partitions: Mapping[int, Sequence[Command]], deadline: float
    ) -> dict[int, Result]:
        from redis.exceptions import RedisError

        try:
            replies = self._nodes[address].receive(deadline)
        except (RedisError, OSError) as error:
            return dict.fromkeys(partitions, self._failure(address, error, sent=True))
        url = server_url(self._settings, address)
        few = too_few_replicas(self._settings, url, replies)
        values, results = iter(replies.values), {}
        for partition, commands in partitions.items():
            answer = read_answer([next(values) for _ in commands], address)
            results[partition] = self._result(answer, few, url)
        return results

    def _result(
        self,
        answer: list[Any] | Redirection | Later | Exception,
        few: StoreUnavailableError | None,
        url: str,
    ) -> Result:
        if isinstance(answer, Later):
            return answer._replace(error=store_error(self._settings, answer.error, url))
        if isinstance(answer, Redirection):
            return answer
        if isinstance(answer, Exception):
            return store_error(self._settings, answer, url)
        return answer if few is None else few

    def _topology(self, address: Address, deadline: float) -> Topology | StoreUnavailableError | Later:
        from redis.exceptions import InvalidResponse, RedisError

        try:
            node = self._node(address, deadline)
            node.send([Command(("CLUSTER", "SLOTS"))])
            (reply,) = node.receive(deadline).values
        except (RedisError, OSError) as error:
            return self._failure(address, error)
        if isinstance(reply, Exception):
            return store_error(self._settings, reply, server_url(self._settings, address))
        try:
            return read_topology(reply, address)
        except NO_REPLY as error:
            return self._failure(address, InvalidResponse(f"it does not reply as a node of a cluster does ({error})"))

    def _node(self, address: Address, deadline: float) -> RedisNode:
        if address not in self._nodes:
            seconds = max(0.001, deadline - monotonic())
            self._nodes[address] = RedisNode(self._settings, address, seconds)
        return self._nodes[address]

    def _failure(self, address: Address, error: Exception, sent: bool = False) -> StoreUnavailableError | Later:
        from redis import exceptions

        self._drop(address)
        found = store_error(self._settings, error, server_url(self._settings, address))
        if isinstance(error, exceptions.AuthenticationError):
            return found
        return Later(found, isinstance(error, exceptions.TimeoutError), sent)

    def _without_owner(self, partition: int) -> StoreUnavailableError | Later:
        if self._why_unknown is not None:
            return self._why_unknown
        url, slot = str(self._settings.server), self._slots[partition]
        return Later(StoreUnavailableError(f"the session store {url} cannot be used: no server has slot {slot}"))

    def _drop(self, address: Address) -> None:
        if (node := self._nodes.pop(address, None)) is not None:
            node.close()
