"""The judgement of answers while the weights of a model change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

import torch
from answering_server import answering, response
from chaos.archive import make_model
from chaos.cluster.rolling_update import Question, Update, Version, questions, update_under_load

OLD, NEW = make_model(), make_model()
with torch.no_grad():
    for weight in NEW.parameters():
        weight.add_(0.25)
ASKED = questions(OLD, NEW, [(1, 2, 3), (7,), (9, 8)])


def told(values: Mapping[str, torch.Tensor]) -> bytes:
    """The body of an answer."""
    return json.dumps({name: value.tolist() for name, value in values.items()}).encode()


def test_an_answer_is_of_the_old_the_new_or_neither_model() -> None:
    """Bodies that are no answer at all are of neither."""
    for question in ASKED:
        assert question.version(told(question.old)) is Version.OLD
        assert question.version(told(question.new)) is Version.NEW
        mixed = {**question.old, "topic": question.new["topic"]}
        for body in (told(mixed), b"{}", b"[]", b"not JSON"):
            assert question.version(body) is Version.NEITHER


def updated(other: Callable[[int, Question], bytes | None]) -> Update:
    """An update of a server whose `other` answers, by number, come instead of those of the current model."""
    current, count = ["old"], [0]

    def answer(body: bytes, headers: Mapping[str, str]) -> bytes:
        count[0] += 1
        question = next(one for one in ASKED if [*one.tokens] == json.loads(body))
        return other(count[0], question) or response(told(getattr(question, current[0])))

    async def run() -> Update:
        async with answering(answer) as port:
            return await update_under_load(port, "/", ASKED, lambda: current.__setitem__(0, "new"), lambda given: None)

    return asyncio.run(run())


def test_an_update_without_a_refusal_counts_both_models() -> None:
    """Old answers come before, and enough new ones after."""
    update = updated(lambda number, question: None)

    assert update.old >= 200
    assert update.new >= 300
    assert (update.refused, update.wrong) == ([], [])


def test_refusals_and_wrong_answers_are_told() -> None:
    """A line for each."""

    def other(number: int, question: Question) -> bytes | None:
        wrong = {10: response(b"busy", 503), 20: response(told({**question.old, "topic": question.new["topic"]}))}
        return wrong.get(number)

    update = updated(other)

    assert update.refused == ["503 busy"]
    assert len(update.wrong) == 1
