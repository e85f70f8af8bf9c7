"""Forms in which requests name their session over a real TorchServe, such as headers or a token."""

import json
from typing import Any

import pytest
from rest import JSON, assert_close, assert_refused, post

from .chunks_and_replies import END, ID, STEP, TOKEN, cut, draw, told
from .streaming_server import Streaming


@pytest.mark.parametrize("model", ["disk", "native", "cluster"])
def test_a_session_without_an_id_gets_one_and_pieces_are_answered_as_the_whole(
    streaming: Streaming, model: str
) -> None:
    frames = draw(40)
    pieces = cut(frames, 7, 8, 24)
    first = streaming.send(model, pieces[0])
    session, step = told(first)
    scores = list(first.json["scores"])
    for piece in pieces[1:]:
        reply = streaming.send(model, piece, id=session, step=step)
        assert told(reply) == (session, step + len(piece))
        step += len(piece)
        scores += reply.json["scores"]

    assert len(session) >= 20
    assert_close(scores, streaming.eager(frames))


@pytest.mark.parametrize("spelling", [str, str.upper, str.title, lambda name: name.replace("_", "-")])
def test_headers_may_be_spelled_as_proxies_spell_them(streaming: Streaming, spelling: Any) -> None:
    frames = draw(5)
    one, other = cut(frames, 3)
    session, _ = told(streaming.send("disk", one))
    headers = {**JSON, spelling(ID): session, spelling(STEP): "3", spelling(END): "TRUE"}
    reply = post(streaming.server.inference, "/predictions/disk", json.dumps(other).encode(), headers)

    assert told(reply) == (session, 5)
    assert_close(reply.json["scores"], streaming.eager(frames)[3:])
    assert_refused(streaming.send("disk", one, id=session), 410)


def test_a_client_carries_its_session_in_a_token(streaming: Streaming) -> None:
    frames = draw(10)
    pieces = cut(frames, 4, 7)
    first = streaming.send("client", pieces[0])
    session, _ = told(first)
    token = first.json[TOKEN]
    second = streaming.send("client", {"frames": pieces[1], ID: session, TOKEN: token, STEP: 4})
    assert told(second) == (session, 7)
    third = streaming.send("client", pieces[2], id=session, token=second.json[TOKEN], end="true")
    assert TOKEN not in third.json
    scores = [*first.json["scores"], *second.json["scores"], *third.json["scores"]]
    assert_close(scores, streaming.eager(frames))

    again = streaming.send("client", pieces[1], id=session, token=token)
    assert again.json["scores"] == second.json["scores"]
    for place in (0, len(token) // 2, len(token) - 1):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        refusal = assert_refused(streaming.send("client", pieces[1], id=session, token=changed), 400)
        assert refusal["type"] == "InvalidToken"
        assert changed not in refusal["message"]
    assert_refused(streaming.send("client", pieces[1], id=session), 410)
