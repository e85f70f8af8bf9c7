"""The choice of replicas and nodes to kill."""

from __future__ import annotations

import random
from typing import Any

import pytest
from chaos.cluster.replicas import ReplicaProcess, node_to_remove, ready_replicas, replica_to_kill

A, B, C = ReplicaProcess("a", 1, "n1"), ReplicaProcess("b", 2, "n1"), ReplicaProcess("c", 3, "n2")


def reported(*replicas: tuple[ReplicaProcess, str]) -> dict[str, Any]:
    """Serve's report of replicas in a state each."""
    told = [{"replica_id": one.id, "pid": one.pid, "node_id": one.node, "state": state} for one, state in replicas]
    return {"applications": {"sessions": {"deployments": {"archives": {"replicas": told}}}}}


def test_replicas_that_start_or_that_were_killed_are_not_ready() -> None:
    """Serve reports a killed replica as running for a while."""
    report = reported((A, "RUNNING"), (B, "STARTING"), (C, "RUNNING"))

    assert ready_replicas(report, set()) == [A, C]
    assert ready_replicas(report, {"c"}) == [A]
    assert ready_replicas({"applications": {}}, set()) == []


@pytest.mark.parametrize("ready", [[], [A]])
def test_the_last_replica_is_not_killed(ready: list[ReplicaProcess]) -> None:
    """Nor is its node removed."""
    assert replica_to_kill(ready, random.Random(0)) is None
    assert node_to_remove(ready, random.Random(0)) is None


def test_a_node_with_all_replicas_is_not_removed() -> None:
    """One of its replicas may be killed."""
    assert node_to_remove([A, B], random.Random(0)) is None
    assert replica_to_kill([A, B], random.Random(0)) in (A, B)


def test_any_replica_and_any_node_with_one_may_be_chosen() -> None:
    """As chance wants."""
    chance = random.Random(0)

    assert {replica_to_kill([A, B, C], chance) for _ in range(50)} == {A, B, C}
    assert {node_to_remove([A, B, C], chance) for _ in range(50)} == {"n1", "n2"}
