"""Connections to a Redis or Valkey cluster: what moves or fails over is asked again, within the time limit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import NamedTuple

from .redis_client import Address, check_package
from .redis_connections import Answer
from .redis_partition import Command
from .redis_shards import Result, Shards
from .redis_topology import Later, Redirection
from .settings import RedisSettings
from .store import StoreUnavailableError

_log = logging.getLogger(__name__)
_PAUSES = (0.0, 0.0, 0.01, 0.02, 0.05)
"""Seconds before each round; the last one stays."""


class _Outage(NamedTuple):
    """A partition that did not answer, and the time until which nobody asks it again."""

    until: float
    error: StoreUnavailableError


class ClusterConnections:
    """Connections to all shards of a cluster; implements `Connections`.

    A call takes one round trip: all commands are sent to all shards before any reply is read. What a server does not
    do, because slots move, a replica takes over or a connection was closed, is asked again within the time limit of the
    settings. A partition without an answer by then fails alone. It is not asked for as long again, and then not waited
    for until it has answered, since the sessions of others share its batches.
    """

    def __init__(self, settings: RedisSettings, slots: Sequence[int]) -> None:
        self._settings = settings
        self._shards = Shards(settings, slots)
        self._outages: dict[int, _Outage] = {}

    def ask(
        self, requests: Mapping[int, Sequence[Command]], replicas: int = 0, hurried: frozenset[int] = frozenset()
    ) -> dict[int, Answer]:
        """Send the commands of each partition to its shard, as `Connections.ask`."""
        check_package()
        now = monotonic()
        deadline = now + self._settings.timeout_seconds
        answers: dict[int, Answer] = {
            partition: outage.error
            for partition, outage in self._outages.items()
            if partition in requests and now < outage.until
        }
        asking: dict[int, Address] = {}
        if not self._shards.owners:
            self._shards.refresh(deadline)
        for number, pause in enumerate(_pauses()):
            left = {partition: commands for partition, commands in requests.items() if partition not in answers}
            if not left:
                break
            sleep(max(0.0, min(pause, deadline - monotonic())))
            connected = self._shards.connected
            results = self._shards.ask(left, asking, replicas, deadline)
            late = {partition: result.error for partition, result in results.items() if isinstance(result, Later)}
            if late:
                self._shards.refresh(deadline, connected - self._shards.connected)
            asking = self._follow(results)
            answers.update(self._settled(results))
            at_once = hurried | self._outages.keys()
            is_over = monotonic() >= deadline
            for partition, error in (late | self._moving(results)).items():
                if is_over or (number > 0 and partition in at_once):
                    answers[partition] = self._give_up(partition, error)
        return {partition: answers[partition] for partition in requests}

    def close(self) -> None:
        """Close the connections; the next call connects again."""
        self._shards.close()

    def _follow(self, results: Mapping[int, Result]) -> dict[int, Address]:
        """Take over where partitions are, and return the servers to which some are on their way."""
        asking: dict[int, Address] = {}
        for partition, result in results.items():
            if isinstance(result, Redirection) and result.asking:
                asking[partition] = result.address
            elif isinstance(result, Redirection):
                self._shards.move(partition, result.address)
        return asking

    def _settled(self, results: Mapping[int, Result]) -> dict[int, Answer]:
        settled: dict[int, Answer] = {}
        for partition, result in results.items():
            if isinstance(result, (list, StoreUnavailableError)):
                settled[partition] = result
                if self._outages.pop(partition, None) is not None:
                    _log.info("the partition %d of the session store %s is back", partition, self._settings.address)
        return settled

    def _moving(self, results: Mapping[int, Result]) -> dict[int, Exception]:
        message = f"the session store {self._settings.address} cannot be used: a slot moves from server to server"
        moving = (partition for partition, result in results.items() if isinstance(result, Redirection))
        return {partition: StoreUnavailableError(message) for partition in moving}

    def _give_up(self, partition: int, error: Exception) -> StoreUnavailableError:
        assert isinstance(error, StoreUnavailableError)
        self._outages[partition] = _Outage(monotonic() + self._settings.timeout_seconds, error)
        return error


def _pauses() -> Iterator[float]:
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]
