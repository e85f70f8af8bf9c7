"""Faults of a cluster: when they are due and whom they may hit; and the judgement of weights that change."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from answering_server import answering, response
from hypothesis import given
from hypothesis import strategies as st
from tools.stress.checks import Values, outputs
from tools.stress.cluster import (
    NODES,
    PRIMARIES,
    Question,
    ReplicaProcess,
    Update,
    due,
    node_to_remove,
    ready_replicas,
    replica_to_kill,
    update_under_load,
)
from tools.stress.hosts import make_model

A, B, C = ReplicaProcess("a", 1, "n1"), ReplicaProcess("b", 2, "n1"), ReplicaProcess("c", 3, "n2")
OLD, NEW = make_model(), make_model()
with torch.no_grad():
    for weight in NEW.parameters():
        weight.add_(0.25)
ASKED = [Question(ids, outputs(OLD, ids), outputs(NEW, ids)) for ids in ([1, 2, 3], [7], [9, 8])]


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


def body(values: Values) -> bytes:
    return json.dumps({name: value.tolist() for name, value in values.items()}).encode()


def test_an_answer_is_of_the_old_the_new_or_neither_model() -> None:
    for question in ASKED:
        assert (question.version(body(question.old)), question.version(body(question.new))) == ("old", "new")
        for other in (body({**question.old, "topic": question.new["topic"]}), b"{}", b"[]", b"not JSON"):
            assert question.version(other) == "neither"


def updated(other: Callable[[int, Question], bytes | None]) -> Update:
    current, count = ["old"], [0]

    def answer(text: bytes, headers: Mapping[str, str]) -> bytes:
        count[0] += 1
        question = next(question for question in ASKED if question.ids == json.loads(text))
        return other(count[0], question) or response(body(getattr(question, current[0])))

    async def run() -> Update:
        async with answering(answer) as port:
            return await update_under_load(port, ASKED, lambda: current.__setitem__(0, "new"))

    return asyncio.run(run())


def test_an_update_holds_without_refusals_and_with_answers_of_the_two_models_alone() -> None:
    update = updated(lambda number, question: None)
    assert update.answers["old"] >= 200
    assert update.answers["new"] >= 300
    assert all(law.holds for law in update.laws())

    spoilt = {10: response(b"busy", 503), 20: response(b"{}")}
    update = updated(lambda number, question: spoilt.get(number))
    assert [law.what for law in update.laws() if not law.holds] == ["update: neither", "update: refused"]


@pytest.mark.parametrize("answers", [{"old": 5}, {"new": 5}, {}])
def test_an_update_without_load_before_or_after_does_not_hold(answers: dict[str, int]) -> None:
    assert not all(law.holds for law in Update(Counter(answers)).laws())
