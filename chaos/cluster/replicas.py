"""Replicas as Ray Serve reports them, and those that may be killed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple


class ReplicaProcess(NamedTuple):
    """A replica that takes requests."""

    id: str
    """Serve's id, which no later replica gets."""
    pid: int
    node: str
    """Ray's id of its node."""


def ready_replicas(details: Mapping[str, Any], gone: Collection[str]) -> list[ReplicaProcess]:
    """List the replicas that take requests, but for those with the ids `gone`: Serve notices it later."""
    deployments = [one for app in details["applications"].values() for one in app["deployments"].values()]
    return [
        ReplicaProcess(replica["replica_id"], replica["pid"], replica["node_id"])
        for deployment in deployments
        for replica in deployment["replicas"]
        if replica["state"] == "RUNNING" and replica["replica_id"] not in gone
    ]


def replica_to_kill(ready: Sequence[ReplicaProcess], chance: random.Random) -> ReplicaProcess | None:
    """Choose one of at least two; None: fewer are ready, and one must go on."""
    return chance.choice(ready) if len(ready) >= 2 else None


def node_to_remove(ready: Sequence[ReplicaProcess], chance: random.Random) -> str | None:
    """Choose a node with a replica; None: no other node has one, and one must go on."""
    nodes = sorted({replica.node for replica in ready})
    return chance.choice(nodes) if len(nodes) >= 2 else None
