"""Good requests in every format: the model's own answer is right, and no other one is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from chaos.archive import make_model
from hypothesis import given
from hypothesis import strategies as st
from soak.archives import LONGEST, MOST_SEQUENCES, MOST_TIMESTEPS
from soak.good_requests import GoodRequest, draw_request, draw_sentences

SENTENCES = draw_sentences(make_model(), 20, random.Random(0))
REQUESTS = st.integers(0, 2**32).map(lambda seed: draw_request(SENTENCES, random.Random(seed)))


def served(good: GoodRequest, change: Callable[[list[dict[str, Any]]], object] = lambda _: None) -> bytes:
    """The server's answer in the format of the request, after a change of its outputs."""
    outputs = [{name: value.tolist() for name, value in one.expected.items()} for one in good.sentences]
    change(outputs)
    if b'"instances"' in good.request.body:
        return json.dumps({"predictions": outputs}).encode()
    if b'"inputs"' not in good.request.body:
        return json.dumps(outputs[0]).encode()
    entries = [
        {
            "name": "tags",
            "shape": [len(outputs[0]["tags"]), 4],
            "data": [number for step in outputs[0]["tags"] for number in step],
        },
        {"name": "topic", "shape": [len(outputs[0]["topic"])], "data": outputs[0]["topic"]},
    ]
    return json.dumps({"outputs": entries}).encode()


def raise_last_topic(outputs: list[dict[str, Any]]) -> None:
    """Change one number of the last sequence by a thousandth."""
    outputs[-1]["topic"][0] += 1e-3


def drop_last_tags(outputs: list[dict[str, Any]]) -> None:
    """Leave out the last timestep of the last sequence."""
    outputs[-1]["tags"].pop()


@given(good=REQUESTS)
def test_the_models_own_answer_is_right(good: GoodRequest) -> None:
    """In every format."""
    assert good.is_answered_by(served(good))


@given(good=REQUESTS, change=st.sampled_from([raise_last_topic, drop_last_tags]))
def test_an_answer_with_a_change_is_wrong(good: GoodRequest, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """A number, and a timestep."""
    assert not good.is_answered_by(served(good, change))


@given(good=REQUESTS)
def test_answers_that_are_mixed_up_are_wrong(good: GoodRequest) -> None:
    """Several sequences must be answered in their order, and each must be answered."""
    if len(good.sentences) > 1:
        assert not good.is_answered_by(served(good, list.reverse))
        assert not good.is_answered_by(served(good, list.pop))


@given(good=REQUESTS)
@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'{"predictions": [], "outputs": []}', b"\xff"])
def test_a_body_without_outputs_is_wrong(body: bytes, good: GoodRequest) -> None:
    """The check itself does not fail."""
    assert not good.is_answered_by(body)


@given(good=REQUESTS)
def test_a_good_request_is_within_the_limits(good: GoodRequest) -> None:
    """The server must not refuse it."""
    lengths = [len(sentence.ids) for sentence in good.sentences]

    assert 1 <= min(lengths) <= max(lengths) <= LONGEST
    assert len(lengths) <= MOST_SEQUENCES
    assert sum(lengths) <= MOST_TIMESTEPS


def test_each_format_is_drawn() -> None:
    """Lists, V1, V2 and .npy."""
    bodies = [draw_request(SENTENCES, random.Random(seed)).request.body for seed in range(100)]
    starts = {body[:6] for body in bodies if not body.startswith(b"[")}

    assert starts == {b'{"inst', b'{"inpu', b"\x93NUMPY"}
    assert any(body.startswith(b"[") for body in bodies)


def test_expected_answers_are_of_each_sequence_alone() -> None:
    """Outputs are of the sequence's own length."""
    assert all(one.expected["tags"].shape == (len(one.ids), 4) for one in SENTENCES)
