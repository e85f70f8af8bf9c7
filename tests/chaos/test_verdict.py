"""A check that accepts right answers only."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from chaos.archive import make_model
from chaos.expected import doubled, expect
from chaos.script import Chunk, Script, draw_scripts
from chaos.verdict import ID, STEP, Verdict, judge

MODEL = make_model()
(SCRIPT,) = draw_scripts(sessions=1, chunks=6, tokens=50, seed=0)
CHUNK = list(SCRIPT.chunks())[3]


def served(script: Script, chunk: Chunk) -> dict[str, Any]:
    """The right answer of a server."""
    answer = expect(MODEL, script).of(chunk)
    return {**{name: value.tolist() for name, value in answer.items()}, ID: script.id, STEP: chunk.end}


def verdict(body: dict[str, Any], headers: dict[str, str] | None = None) -> Verdict:
    """The verdict on an answer, whose headers agree with its body unless others are given."""
    said = {ID: str(body.get(ID)), STEP: str(body.get(STEP))} if headers is None else headers
    expected = expect(MODEL, SCRIPT).of(CHUNK)
    return judge(json.dumps(body).encode(), said, SCRIPT.id, CHUNK, expected, lambda: doubled(MODEL, SCRIPT, CHUNK))


def test_the_right_answer_is_right_within_the_tolerance() -> None:
    """Compiled programs add in another order."""
    answer = served(SCRIPT, CHUNK)

    assert verdict(answer) is Verdict.RIGHT
    assert verdict({**answer, "topic": [value + 5e-6 for value in answer["topic"]]}) is Verdict.RIGHT


@pytest.mark.parametrize("output", ["tags", "topic"])
def test_a_value_beyond_the_tolerance_is_wrong(output: str) -> None:
    """This holds for both outputs."""
    answer = served(SCRIPT, CHUNK)

    assert verdict({**answer, output: (torch.tensor(answer[output]) + 1e-3).tolist()}) is Verdict.WRONG


def test_an_answer_of_another_length_is_wrong() -> None:
    """Its values may be right."""
    answer = served(SCRIPT, CHUNK)

    assert verdict({**answer, "tags": answer["tags"][:-1]}) is Verdict.WRONG


@pytest.mark.parametrize("change", [{ID: "another"}, {STEP: CHUNK.begin}, {ID: None}, {"topic": "none"}])
def test_the_session_fields_must_be_right(change: dict[str, Any]) -> None:
    """The id, the step, and the existence of an answer are checked."""
    assert verdict({**served(SCRIPT, CHUNK), **change}) is Verdict.WRONG


@pytest.mark.parametrize("headers", [{}, {ID: SCRIPT.id}, {ID: SCRIPT.id, STEP: "0"}, {ID: "x", STEP: str(CHUNK.end)}])
def test_headers_must_say_the_same(headers: dict[str, str]) -> None:
    """The body alone is not sufficient."""
    assert verdict(served(SCRIPT, CHUNK), headers) is Verdict.WRONG


def test_a_chunk_that_was_applied_twice_is_told_by_its_step_and_by_its_values() -> None:
    """A server could count right and compute twice."""
    again = {name: value.tolist() for name, value in doubled(MODEL, SCRIPT, CHUNK).items()}
    answer = served(SCRIPT, CHUNK)

    assert verdict({**answer, **again, STEP: CHUNK.end + len(CHUNK.tokens)}) is Verdict.TWICE
    assert verdict({**answer, **again}) is Verdict.TWICE


def test_the_answer_to_another_chunk_is_wrong() -> None:
    """An answer to any other chunk is refused."""
    (other,) = draw_scripts(sessions=1, chunks=6, tokens=50, seed=1)
    theirs = served(other, list(other.chunks())[3])

    assert verdict({**theirs, ID: SCRIPT.id, STEP: CHUNK.end}) is Verdict.WRONG


def test_a_body_that_is_no_json_is_wrong() -> None:
    """The check itself does not fail."""
    expected = expect(MODEL, SCRIPT).of(CHUNK)

    assert judge(b"oops", {}, SCRIPT.id, CHUNK, expected, lambda: doubled(MODEL, SCRIPT, CHUNK)) is Verdict.WRONG


def test_what_is_expected_of_each_chunk_is_the_uninterrupted_run() -> None:
    """It has tags of the whole sequence at once, and the topic of the text so far."""
    expected = expect(MODEL, SCRIPT)
    with torch.inference_mode():
        tags, topic = MODEL(torch.tensor([SCRIPT.tokens]), torch.tensor([len(SCRIPT.tokens)]))
    chunks = list(SCRIPT.chunks())

    torch.testing.assert_close(torch.cat([expected.of(chunk)["tags"] for chunk in chunks]), tags[0])
    torch.testing.assert_close(expected.of(chunks[-1])["topic"], topic[0])
