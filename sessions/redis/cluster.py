"""Connections to a Redis or Valkey cluster, whose slots move and whose servers fail over."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import NamedTuple

from ..settings import RedisSettings
from ..store import StoreUnavailableError
from .client import check_package
from .connections import Answer
from .partition import Command
from .shards import Result, Shards
from .topology import Later, Redirection

_log = logging.getLogger(__name__)
_PAUSES = (0.0, 0.0, 0.01, 0.02, 0.05)
"""Seconds before each round; the last value is used for all further rounds."""


class _Outage(NamedTuple):
    """A partition that did not answer, and the time until which it is not asked again."""

    until: float
    error: StoreUnavailableError


class ClusterConnections:
    """Connections to all shards of a cluster; implements `Connections`.

    A call takes one round trip: all commands are sent to all shards before any reply is read. Commands that fail
    because slots move, a replica takes over or a connection was closed are sent again within the time limit of the
    settings. Only the partitions without an answer by then fail. They are not asked again for the same time. After
    that, calls do not wait for them until they have answered, because a batch also has sessions of other partitions.
    """

    def __init__(self, settings: RedisSettings, slots: Sequence[int]) -> None:
        self._settings = settings
        self._shards = Shards(settings, slots)
        self._outages: dict[int, _Outage] = {}
        self.repeated: Collection[int] = ()

    def ask(
        self, requests: Mapping[int, Sequence[Command]], replicas: int = 0, hurried: frozenset[int] = frozenset()
    ) -> dict[int, Answer]:
        """Send the commands of each partition to its shard, as `Connections.ask`."""
        check_package()
        now = monotonic()
        deadline = now + self._settings.timeout_seconds
        answers = self._known_outages(requests, now)
        reasons: dict[int, Later] = {}
        self.repeated = repeated = set[int]()
        if not self._shards.owners:
            self._shards.refresh(deadline)
        for number, pause in enumerate(_pauses()):
            left = {partition: commands for partition, commands in requests.items() if partition not in answers}
            if not left:
                break
            sleep(max(0.0, min(pause, deadline - monotonic())))
            connected = self._shards.connected
            replies = self._shards.ask(left, replicas, deadline)
            repeated |= {one for one, reply in replies.items() if isinstance(reply, Later) and reply.may_have_run}
            results = _with_reasons(replies, reasons)
            if any(isinstance(result, Later) for result in results.values()):
                self._shards.refresh(deadline, connected - self._shards.connected)
            for partition, result in results.items():
                if isinstance(result, Redirection):
                    self._shards.move(partition, result.address)
            answers.update(self._settle(results))
            at_once = (hurried | self._outages.keys()) if number > 0 else frozenset()
            is_over = monotonic() + _PAUSES[-1] >= deadline
            answers.update(self._give_up(results, left.keys() if is_over else at_once))
        return {partition: answers[partition] for partition in requests}

    def close(self) -> None:
        """Close the connections; the next call connects again."""
        self._shards.close()

    def _known_outages(self, requests: Mapping[int, object], now: float) -> dict[int, Answer]:
        outages = ((partition, self._outages.get(partition)) for partition in requests)
        return {partition: outage.error for partition, outage in outages if outage is not None and now < outage.until}

    def _settle(self, results: Mapping[int, Result]) -> dict[int, Answer]:
        """Note that partitions with a final answer are available, and return these answers."""
        settled: dict[int, Answer] = {
            partition: result
            for partition, result in results.items()
            if isinstance(result, (list, StoreUnavailableError))
        }
        back = [partition for partition in settled if self._outages.pop(partition, None) is not None]
        if back:
            _log.info("the session store %s has partitions %s again", self._settings.server, back)
        return settled

    def _give_up(self, results: Mapping[int, Result], partitions: Collection[int]) -> dict[int, Answer]:
        """Note that those `partitions` without an answer are unavailable for a while, and return their errors."""
        message = f"the session store {self._settings.server} cannot be used: a slot moves from server to server"
        given_up: dict[int, Answer] = {}
        for partition, result in results.items():
            if partition in partitions and isinstance(result, (Later, Redirection)):
                error = result.error if isinstance(result, Later) else StoreUnavailableError(message)
                assert isinstance(error, StoreUnavailableError)
                self._outages[partition] = _Outage(monotonic() + self._settings.timeout_seconds, error)
                given_up[partition] = error
        return given_up


def _with_reasons(results: Mapping[int, Result], reasons: dict[int, Later]) -> dict[int, Result]:
    """Replace missing replies by the last reason that a server gave, and store new reasons.

    The last round may have less time than a reply takes, so a missing reply in it says nothing about the server.
    """
    said = {partition: one for partition, one in results.items() if isinstance(one, Later) and not one.is_silence}
    reasons.update(said)
    return {
        partition: reasons.get(partition, one) if isinstance(one, Later) else one for partition, one in results.items()
    }


def _pauses() -> Iterator[float]:
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]
