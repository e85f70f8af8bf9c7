"""Disturbances of a cluster under load: replicas, nodes and a Redis primary are killed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from redis_cluster import SLOTS, LocalCluster

from ..tally import Tally
from .kinds import Kind, due, enough
from .raylets import RayNodes
from .replicas import ReplicaProcess, node_to_remove, replica_to_kill

_LOOK_SECONDS = 0.5
_MOST_SECONDS = 300.0
_DISTURBANCES = 20
"""Disturbances of a long load, about."""
_ANSWERS_BETWEEN = 50
"""Least answers between two disturbances: each of them finds the clients at work."""
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class ClusterTrouble:
    """Disturbances of the nodes and the Redis cluster."""

    nodes: RayNodes
    redis: LocalCluster
    wanted: Mapping[Kind, int]
    """The least number of each kind."""
    answers: int
    """Answers of the whole load, over which the disturbances are spread."""
    chance: random.Random
    made: Counter[Kind] = field(default_factory=Counter)

    @property
    def enough(self) -> bool:
        """Whether there were as many disturbances as wanted."""
        return enough(self.made, self.wanted)

    async def make(self, tally: Tally) -> None:
        """Make one disturbance after the other until it is cancelled.

        Raises:
            TimeoutError: the replicas that a disturbance needs were not ready, or clients got no answers.
        """
        makers = {Kind.REPLICA: self._kill_replica, Kind.NODE: self._remove_node, Kind.PRIMARY: self._kill_primary}
        between = max(_ANSWERS_BETWEEN, self.answers // _DISTURBANCES)
        while True:
            await self._wait_for_answers(tally, tally.given + between)
            kind = due(self.made, self.wanted, tally.given / self.answers)
            await makers[kind]()
            self.made[kind] += 1

    async def _wait_for_answers(self, tally: Tally, until: int) -> None:
        await _awaited(lambda: tally.given if tally.given >= until else None, "answers")

    async def _kill_replica(self) -> None:
        def look() -> ReplicaProcess | None:
            return replica_to_kill(self.nodes.ready(), self.chance)

        while not self.nodes.kill(await _awaited(look, "two replicas that are ready")):
            pass

    async def _remove_node(self) -> None:
        node = await _awaited(lambda: node_to_remove(self.nodes.ready(), self.chance), "replicas on two nodes")
        await asyncio.to_thread(self.nodes.remove, node)
        await asyncio.to_thread(self.nodes.add)

    async def _kill_primary(self) -> None:
        """Kill one, and start it again once its replica has its slots: a shard without one takes no writes."""
        slot = self.chance.randrange(SLOTS)
        killed = self.redis.owner(slot)
        killed.kill()
        await asyncio.to_thread(self.redis.wait_for_failover, slot, killed)
        await asyncio.to_thread(killed.start)
        await asyncio.to_thread(self.redis.wait_until_complete)


async def _awaited(look: Callable[[], _Found | None], what: str) -> _Found:
    deadline = time.monotonic() + _MOST_SECONDS
    while (found := await asyncio.to_thread(look)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {what} within {_MOST_SECONDS:.0f} s, and there were none")
        await asyncio.sleep(_LOOK_SECONDS)
    return found
