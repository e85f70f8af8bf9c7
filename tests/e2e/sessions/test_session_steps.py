"""The order of a session's chunks over a real TorchServe: repeated, missing, simultaneous, last ones."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from rest import assert_close, assert_refused

from .chunks_and_replies import cut, draw, told
from .streaming_server import Streaming

ROUNDS = 12
"""Rounds of simultaneous requests."""


def test_the_same_step_again_is_answered_with_the_same_bytes(streaming: Streaming) -> None:
    frames = draw(9)
    pieces = cut(frames, 3, 5)
    scores: list[Any] = []
    for number, piece in enumerate(pieces):
        headers = {"id": "again", "step": len(scores)}
        headers |= {"start": "true"} if number == 0 else {}
        headers |= {"end": "true"} if number == 2 else {}
        replies = [streaming.send("disk", piece, **headers) for _ in range(3)]
        assert {reply.body for reply in replies} == {replies[0].body}
        assert {told(reply) for reply in replies} == {("again", len(scores) + len(piece))}
        scores += replies[0].json["scores"]

    assert_close(scores, streaming.eager(frames))


def in_order(answers: Sequence[Any], frames: Sequence[torch.Tensor], begun: torch.Tensor, eager: Any) -> torch.Tensor:
    """The order of application in which every answer is right."""
    orders = [frames, frames[::-1]]
    for order in orders:
        whole = torch.cat([begun, *order])
        expected = eager(whole)[len(begun) :]
        given = torch.cat([torch.tensor(answers[next(i for i, f in enumerate(frames) if f is one)]) for one in order])
        if given.shape == expected.shape and torch.allclose(given, expected, rtol=1e-5, atol=1e-5):
            return whole
    raise AssertionError("the answers are of no order")


def test_two_pieces_at_once_are_applied_in_some_order_or_refused(streaming: Streaming) -> None:
    applied = draw(2)
    session, _ = told(streaming.send("disk", applied.tolist()))
    with ThreadPoolExecutor(2) as clients:
        for _ in range(ROUNDS):
            both = [draw(2), draw(3)]
            replies = list(clients.map(lambda one: streaming.send("disk", one.tolist(), id=session), both))
            assert all(reply.status in {200, 409} for reply in replies), [reply.body for reply in replies]
            done = [(reply, one) for reply, one in zip(replies, both, strict=True) if reply.status == 200]
            answers, frames = [reply.json["scores"] for reply, _ in done], [one for _, one in done]
            applied = in_order(answers, frames, applied, streaming.eager) if done else applied
    last = draw(1)
    reply = streaming.send("disk", last.tolist(), id=session, step=len(applied))
    assert_close(reply.json["scores"], streaming.eager(torch.cat([applied, last]))[-1:])


def test_of_two_pieces_for_one_step_one_is_applied(streaming: Streaming) -> None:
    session, step = told(streaming.send("disk", draw(2).tolist()))
    with ThreadPoolExecutor(2) as clients:
        for _ in range(ROUNDS):
            both = [draw(2).tolist(), draw(2).tolist()]
            replies = list(clients.map(partial(streaming.send, "disk", id=session, step=step), both))
            assert sorted(reply.status for reply in replies) == [200, 409]
            step += 2
            same = [draw(1).tolist()] * 2
            replies = list(clients.map(partial(streaming.send, "disk", id=session, step=step), same))
            assert [told(reply) for reply in replies] == [(session, step + 1)] * 2
            assert replies[0].body == replies[1].body
            step += 1


def test_beyond_the_most_sessions_a_new_one_is_refused_with_a_time_to_wait(streaming: Streaming) -> None:
    piece = [[0.0, 0.0, 0.0]]
    sessions = [told(streaming.send("few", piece))[0] for _ in range(2)]
    refused = streaming.send("few", piece)
    assert_refused(refused, 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 600
    told(streaming.send("few", piece, id=sessions[0]))
    told(streaming.send("few", id=sessions[1], end="true"))
    told(streaming.send("few", piece))
