"""Faults of a cluster: when they are due, and whom they may hit."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tools.stress.cluster import NODES, PRIMARIES, ReplicaProcess, due, node_to_remove, ready_replicas, replica_to_kill

A, B, C = ReplicaProcess("a", 1, "n1"), ReplicaProcess("b", 2, "n1"), ReplicaProcess("c", 3, "n2")


@given(st.integers(0, 5), st.integers(0, 5), st.integers(30, 60))
def test_a_run_has_as_many_faults_as_wanted(nodes: int, primaries: int, steps: int) -> None:
    made: Counter[str] = Counter()
    for step in range(steps):
        made[due(made, {NODES: nodes, PRIMARIES: primaries}, step / steps)] += 1

    assert (made[NODES], made[PRIMARIES], made.total()) == (nodes, primaries, steps)


def test_replicas_that_start_or_that_were_killed_are_not_ready() -> None:
    """Serve reports a killed replica as running for a while."""

    def reported(*replicas: tuple[ReplicaProcess, str]) -> dict[str, Any]:
        told = [{"replica_id": one.id, "pid": one.pid, "node_id": one.node, "state": state} for one, state in replicas]
        return {"applications": {"sessions": {"deployments": {"archives": {"replicas": told}}}}}

    report = reported((A, "RUNNING"), (B, "STARTING"), (C, "RUNNING"))
    assert ready_replicas(report, set()) == [A, C]
    assert ready_replicas(report, {"c"}) == [A]
    assert ready_replicas({"applications": {}}, set()) == []


def test_the_last_replica_and_a_node_with_all_of_them_go_on() -> None:
    chance = random.Random(0)
    for ready in ([], [A]):
        assert (replica_to_kill(ready, chance), node_to_remove(ready, chance)) == (None, None)
    assert node_to_remove([A, B], chance) is None
    assert {replica_to_kill([A, B, C], chance) for _ in range(50)} == {A, B, C}
    assert {node_to_remove([A, B, C], chance) for _ in range(50)} == {"n1", "n2"}
