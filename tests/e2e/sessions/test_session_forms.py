"""Forms in which requests name their session over a real TorchServe, such as headers or a token."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from mixed_requests import npy
from rest import JSON, assert_close, assert_refused, post

from .chunks_and_replies import END, ID, START, STEP, TOKEN, cut, draw, told
from .streaming_server import Streaming

pytestmark = pytest.mark.ci


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


def test_fields_of_the_body_say_the_same_as_headers(streaming: Streaming) -> None:
    """The fields are for gRPC, which has no headers, and for proxies that drop names with underscores."""
    frames = draw(6)
    one, other = cut(frames, 2)
    first = streaming.send("disk", {"frames": one, ID: "by-fields", START: True})
    second = streaming.send("disk", {"frames": other, ID: "by-fields", STEP: 2, END: True})

    assert [told(first), told(second)] == [("by-fields", 2), ("by-fields", 6)]
    assert_close(first.json["scores"] + second.json["scores"], streaming.eager(frames))
    contrary = streaming.send("disk", {"frames": other, STEP: 2}, id="by-fields", step=3)
    assert_refused(contrary, 400)


def test_the_open_inference_protocol_has_them_among_its_parameters(streaming: Streaming) -> None:
    frames = draw(6)
    scores: list[float] = []
    for begin, end in ((0, 4), (4, 6)):
        piece = frames[begin:end]
        tensor = {"name": "frames", "shape": [*piece.shape], "datatype": "FP32", "data": piece.flatten().tolist()}
        parameters = {"sequence_id": "by-parameters", "sequence_start": begin == 0, "sequence_end": end == 6}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        reply = post(streaming.server.inference, "/v2/models/disk/infer", body, JSON)
        assert reply.status == 200, reply.body
        assert reply.json["parameters"] == {ID: "by-parameters", STEP: end}
        (output,) = reply.json["outputs"]
        scores += output["data"]

    assert_close(torch.tensor(scores).reshape(6, 4).tolist(), streaming.eager(frames))


def test_npy_goes_in_and_out_with_headers_alone(streaming: Streaming) -> None:
    frames = draw(9)
    scores: list[Any] = []
    for piece in (frames[:4], frames[4:]):
        headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy", ID: "by-npy"}
        headers |= {START: "true"} if not scores else {STEP: "4"}
        reply = post(streaming.server.inference, "/predictions/disk", npy(piece.numpy()), headers)
        assert (reply.status, reply.content_type) == (200, "application/x-npy"), reply.body
        scores.append(np.load(io.BytesIO(reply.body), allow_pickle=False))

    assert (reply.headers[ID], reply.headers[STEP]) == ("by-npy", "9")
    assert_close(np.concatenate(scores).tolist(), streaming.eager(frames))


def test_an_unknown_session_is_told_and_never_begins_by_itself(streaming: Streaming) -> None:
    frames = draw(3).tolist()
    session, _ = told(streaming.send("disk", frames))

    for headers in ({"id": "never-was"}, {"id": "never-was", "step": 3}):
        assert assert_refused(streaming.send("disk", frames, **headers), 410)["type"] == "SessionUnknown"
    assert_refused(streaming.send("redis", frames, id=session), 410)


def test_an_id_that_cannot_stand_in_a_header_is_refused_and_not_repeated(streaming: Streaming) -> None:
    for session in ("a b", "x" * 129, "<script>"):
        refused = streaming.send("disk", [[0.0, 0.0, 0.0]], id=session, start="true")
        assert_refused(refused, 400)
        assert ID not in refused.headers
        assert session not in refused.body.decode()


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
