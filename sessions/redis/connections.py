"""Connections to the servers of a store: one that has all partitions, or the shards of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from time import monotonic, sleep
from typing import Any, NamedTuple, Optional, Union

from ..settings import RedisSettings
from ..store import StoreUnavailableError
from .node import NO_REPLY, Address, RedisNode, Replies, check_package, server_url, store_error
from .shard_commands import Command

_log = logging.getLogger(__name__)
_PAUSES = (0.0, 0.0, 0.01, 0.02, 0.05)
"""Seconds before each round; the last value is used for all further rounds."""

Answer = Union["list[Any]", StoreUnavailableError]
"""The replies to the commands of one partition, or why there are none."""


class Retryable(NamedTuple):
    """A failure whose cause is not in the commands: they can be sent again."""

    error: StoreUnavailableError
    is_silence: bool = False
    """Whether no server replied in time, so that none gave the reason."""
    may_have_run: bool = False
    """Whether a server may have run some of the commands, or all."""
    moved_to: Optional[Address] = None
    """The server that has the partition now."""


Result = Union["list[Any]", StoreUnavailableError, Retryable]
"""Replies to the commands of one partition, a final error, or the reason to send them again."""


class _Outage(NamedTuple):
    """A partition that did not answer, and the time until which it is not asked again."""

    until: float
    error: StoreUnavailableError


class RedisConnections:
    """One connection to each server that has partitions; `slots` has the slot of each partition.

    The first call connects, and so does the next call after an error. A call takes one round trip: all commands are
    sent to all servers before any reply is read. Commands that fail because a connection was closed are sent again,
    once if there is one server. On a cluster, they are sent again within the time limit of the settings, also because
    slots move or a replica takes over. Only the partitions without an answer by then fail. They are not asked again for
    the same time. After that, calls do not wait for them until they have answered, because a batch also has sessions of
    other partitions.
    """

    def __init__(self, settings: RedisSettings, slots: Sequence[int]) -> None:
        self._settings = settings
        self._slots = slots
        self._first = Address(settings.server.host, settings.server.port)
        self._nodes: dict[Address, RedisNode] = {}
        self._owners: dict[int, Address] = {} if settings.cluster else dict.fromkeys(range(len(slots)), self._first)
        self._addresses: Sequence[Address] = ()
        self._no_topology: StoreUnavailableError | Retryable | None = None
        self._outages: dict[int, _Outage] = {}
        self.repeated: set[int] = set()
        """Partitions whose commands a server may have run before the last call sent them again."""

    def ask(
        self, requests: Mapping[int, Sequence[Command]], replicas: int = 0, skip_if_down: frozenset[int] = frozenset()
    ) -> dict[int, Answer]:
        """Send the commands of each partition, and return its answer.

        `replicas` of each server must have the changes before its answer counts. The call does not wait for a partition
        in `skip_if_down` while its server cannot be reached.

        Raises `StoreUnavailableError`: the password or the package `redis` is missing.
        """
        check_package()
        now = monotonic()
        deadline = now + self._settings.timeout_seconds
        answers: dict[int, Answer] = {
            partition: outage.error
            for partition in requests
            if (outage := self._outages.get(partition)) is not None and now < outage.until
        }
        reasons: dict[int, Retryable] = {}
        self.repeated = set()
        if not self._owners:
            self._refresh(deadline)
        for number, pause in enumerate(chain(_PAUSES, repeat(_PAUSES[-1]))):
            pending = {partition: commands for partition, commands in requests.items() if partition not in answers}
            if not pending:
                break
            if pause:  # a sleep of no time gives the processor away
                sleep(max(0.0, min(pause, deadline - monotonic())))
            connected = set(self._nodes)
            results = self._ask_once(pending, replicas, deadline)
            failures = {partition: result for partition, result in results.items() if isinstance(result, Retryable)}
            self._prepare_retry(failures, deadline, connected)
            # The last round may have less time than a reply takes, so silence in it does not replace a reason.
            reasons.update({partition: one for partition, one in failures.items() if not one.is_silence})
            answers.update(self._settle(results))
            is_over = monotonic() + _PAUSES[-1] >= deadline or (number > 0 and not self._settings.cluster)
            hasty = (skip_if_down | self._outages.keys()) if number > 0 else frozenset()
            answers.update(
                {
                    partition: self._give_up(partition, reasons.get(partition, failure))
                    for partition, failure in failures.items()
                    if is_over or partition in hasty
                }
            )
        return {partition: answers[partition] for partition in requests}

    def close(self) -> None:
        """Close the connections; the next call connects again."""
        for address in [*self._nodes]:
            self._drop(address)

    def _prepare_retry(self, failures: Mapping[int, Retryable], deadline: float, connected: set[Address]) -> None:
        """Find the servers of the partitions that failed; those that were `connected` and are not are asked last."""
        self.repeated |= {partition for partition, failure in failures.items() if failure.may_have_run}
        if any(failure.moved_to is None for failure in failures.values()):
            self._refresh(deadline, connected - self._nodes.keys())
        for partition, failure in failures.items():
            if failure.moved_to is not None and self._settings.cluster:
                self._owners[partition] = failure.moved_to

    def _settle(self, results: Mapping[int, Result]) -> dict[int, Answer]:
        """Note that partitions with a final answer are available, and return these answers."""
        settled: dict[int, Answer] = {
            partition: result for partition, result in results.items() if not isinstance(result, Retryable)
        }
        back = [partition for partition in settled if self._outages.pop(partition, None) is not None]
        if back:
            _log.info("the session store %s has partitions %s again", self._settings.server, back)
        return settled

    def _give_up(self, partition: int, failure: Retryable) -> StoreUnavailableError:
        """Note that a partition of a cluster is unavailable for a while, and return the error."""
        if self._settings.cluster:
            self._outages[partition] = _Outage(monotonic() + self._settings.timeout_seconds, failure.error)
        return failure.error

    def _ask_once(self, requests: Mapping[int, Sequence[Command]], replicas: int, deadline: float) -> dict[int, Result]:
        """Send the commands of all partitions to their servers, then read all replies."""
        results: dict[int, Result] = {}
        servers: dict[Address, dict[int, Sequence[Command]]] = {}
        for partition, commands in requests.items():
            address = self._owners.get(partition)
            if address is None:
                url, slot = str(self._settings.server), self._slots[partition]
                reason = f"the session store {url} cannot be used: no server has slot {slot}"
                results[partition] = self._no_topology or Retryable(StoreUnavailableError(reason))
            else:
                servers.setdefault(address, {})[partition] = commands
        sent: list[Address] = []
        try:
            for address, partitions in servers.items():
                failure = self._send(address, [*chain.from_iterable(partitions.values())], replicas, deadline)
                results.update({} if failure is None else dict.fromkeys(partitions, failure))
                sent += [address] if failure is None else []
            for address in sent:
                results.update(self._receive(address, servers[address]))
        except BaseException:  # the next call must not read replies that this one has left
            self.close()
            raise
        return results

    def _send(
        self, address: Address, commands: Sequence[Command], replicas: int, deadline: float
    ) -> StoreUnavailableError | Retryable | None:
        from redis.exceptions import RedisError

        try:
            self._node(address, deadline).send(commands, deadline, replicas)
        except (RedisError, OSError) as error:
            return self._connection_failure(address, error, sent=address in self._nodes)
        return None

    def _receive(self, address: Address, partitions: Mapping[int, Sequence[Command]]) -> dict[int, Result]:
        from redis.exceptions import NoScriptError, RedisError

        try:
            replies = self._nodes[address].receive()
        except (RedisError, OSError) as error:
            return dict.fromkeys(partitions, self._connection_failure(address, error, sent=True))
        few = self._too_few_replicas(address, replies)
        values, results = iter(replies.values), dict[int, Result]()
        for partition, commands in partitions.items():
            answer = read_answer(self._settings, [next(values) for _ in commands], address)
            results[partition] = few if few is not None and isinstance(answer, list) else answer
        errors = [value for value in replies.values if isinstance(value, Exception)]
        # A new connection loads the scripts, and the address of one server may lead to another one by now.
        if any(isinstance(error, NoScriptError) for error in errors) or (errors and not self._settings.cluster):
            self._drop(address)
        return results

    def _too_few_replicas(self, address: Address, replies: Replies) -> StoreUnavailableError | None:
        """Return the error of changes that too few replicas have; None if enough have them."""
        if replies.replicas is None or replies.replicas >= self._settings.replicas:
            return None
        return StoreUnavailableError(
            f"the session store {server_url(self._settings, address)} has {replies.replicas} replicas that are up to "
            f"date, and replicas: {self._settings.replicas} are expected; a change may be lost in a failover"
        )

    def _refresh(self, deadline: float, avoided: set[Address] | None = None) -> None:
        """Ask a server of a cluster for the owners of slots: one that is connected first, and `avoided` ones last."""
        if not self._settings.cluster:
            return
        last = avoided or set()
        addresses = dict.fromkeys((*self._nodes, *self._owners.values(), *self._addresses, self._first))
        for address in sorted(addresses, key=lambda address: address in last):
            self._no_topology = self._read_topology(address, deadline)
            if self._no_topology is None or monotonic() >= deadline:
                return

    def _read_topology(self, address: Address, deadline: float) -> StoreUnavailableError | Retryable | None:
        """Read the owners of slots, or return why they are not known."""
        from redis.exceptions import InvalidResponse, RedisError

        try:
            node = self._node(address, deadline)
            node.send([("CLUSTER", "SLOTS")], deadline)
            (reply,) = node.receive().values
        except (RedisError, OSError) as error:
            return self._connection_failure(address, error)
        if isinstance(reply, Exception):
            return store_error(self._settings, reply, server_url(self._settings, address))
        try:
            self._owners, self._addresses = read_owners(reply, self._slots, address)
        except NO_REPLY as error:
            wrong = InvalidResponse(f"it does not reply as a node of a cluster does ({error})")
            return self._connection_failure(address, wrong)
        return None

    def _node(self, address: Address, deadline: float) -> RedisNode:
        if address not in self._nodes:
            self._nodes[address] = RedisNode(self._settings, address, max(0.001, deadline - monotonic()))
        return self._nodes[address]

    def _connection_failure(
        self, address: Address, error: Exception, sent: bool = False
    ) -> StoreUnavailableError | Retryable:
        from redis import exceptions

        self._drop(address)
        converted = store_error(self._settings, error, server_url(self._settings, address))
        if isinstance(error, (exceptions.AuthenticationError, exceptions.NoPermissionError)):
            return converted
        return Retryable(converted, isinstance(error, exceptions.TimeoutError), sent)

    def _drop(self, address: Address) -> None:
        if (node := self._nodes.pop(address, None)) is not None:
            node.close()


def read_owners(
    reply: Sequence[Any], slots: Sequence[int], asked: Address
) -> tuple[dict[int, Address], tuple[Address, ...]]:
    """Read the reply to CLUSTER SLOTS: the server of each of `slots`, by index, and all servers.

    A server that names no host means that of the server that was asked.

    >>> read_owners([[0, 16383, [b"10.0.0.1", 6379, b"id"], [b"", 6380, b"id"]]], [7], Address("cache", 6379))
    ({0: Address(host='10.0.0.1', port=6379)}, (Address(host='10.0.0.1', port=6379), Address(host='cache', port=6380)))
    """
    owners: dict[int, Address] = {}
    addresses: dict[Address, None] = {}
    for first, last, *servers in reply:
        primary, *replicas = (_address(server, asked) for server in servers)
        addresses.update(dict.fromkeys((primary, *replicas)))
        owners.update({index: primary for index, slot in enumerate(slots) if int(first) <= slot <= int(last)})
    return owners, tuple(addresses)


def read_answer(settings: RedisSettings, replies: Sequence[Any], asked: Address) -> Result:
    """Return the replies to the commands of one partition, or what their first error means.

    While a slot moves, each of its keys is on one of two servers. A server that is asked for what it no longer has, or
    never had, answers ASK: the other one may have it, or may lack other keys of the partition, without saying so. So
    the partition waits until all keys are on one server.
    """
    from redis import exceptions

    error = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if error is None:
        return list(replies)
    converted = store_error(settings, error, server_url(settings, asked))
    if isinstance(error, exceptions.MovedError):
        return Retryable(converted, moved_to=Address(error.host or asked.host, error.port))
    # They end with the move of a slot, a failover, the start of a server or the loading of scripts.
    passing = (
        exceptions.AskError,
        exceptions.TryAgainError,
        exceptions.ClusterDownError,
        exceptions.BusyLoadingError,
        exceptions.ReadOnlyError,
        exceptions.NoScriptError,
    )
    in_a_script = "non local key in a cluster node" in str(error)  # of a key which is moving to another server
    return Retryable(converted, may_have_run=in_a_script) if isinstance(error, passing) or in_a_script else converted


def _address(server: Sequence[Any], asked: Address) -> Address:
    host = server[0].decode() if server[0] else ""
    return Address(asked.host if host in ("", "?") else host, int(server[1]))
