"""Streaming sessions over a real TorchServe: their interface, and the behaviour without a store."""

from __future__ import annotations

import io
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from one_partition import id_in_partition
from rest import JSON, Reply, assert_close, assert_refused, get, post

from torchserve_neuron_lstm.sessions.ids import store_key
from torchserve_neuron_lstm.sessions.partitions import hash_slot, partition_tags
from torchserve_neuron_lstm.sessions.settings import PARTITIONS

from .streaming_server import Streaming, streaming_server

ID, START, END, STEP, TOKEN = (f"ts_request_sequence_{word}" for word in ("id", "start", "end", "step", "token"))
ROUNDS = 12
"""Rounds of simultaneous requests."""
RECOVERY_SECONDS = 20


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streaming]:
    """The scorer with every store, and with another engine, on one TorchServe."""
    with streaming_server(tmp_path_factory) as running:
        yield running


def draw(length: int) -> torch.Tensor:
    """Frames [T, 3] of a sequence."""
    return torch.randn(length, 3)


def cut(frames: torch.Tensor, *ends: int) -> list[list[list[float]]]:
    """The chunks of a sequence, cut at these timesteps."""
    return [frames[begin:end].tolist() for begin, end in zip((0, *ends), (*ends, len(frames)), strict=True)]


def told(reply: Reply) -> tuple[str, int]:
    """The session's id and its step, which are the same in headers and body."""
    assert reply.status == 200, reply.body
    said = reply.json[ID], reply.json[STEP]
    assert said == (reply.headers[ID], int(reply.headers[STEP]))
    return said


@pytest.mark.parametrize("model", ["disk", "native", "cluster"])
def test_a_session_without_an_id_gets_one_and_pieces_are_answered_as_the_whole(
    streaming: Streaming, model: str
) -> None:
    """Every timestep is as in the uninterrupted run, on any worker and any engine."""
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
    """Any case and dashes are accepted."""
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
    """This holds for requests and responses."""
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
    """The answer is only an array; its session is in the headers."""
    frames = draw(9)
    scores: list[Any] = []
    for piece in (frames[:4], frames[4:]):
        content = io.BytesIO()
        np.save(content, piece.numpy())
        headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy", ID: "by-npy"}
        headers |= {START: "true"} if not scores else {STEP: "4"}
        reply = post(streaming.server.inference, "/predictions/disk", content.getvalue(), headers)
        assert (reply.status, reply.content_type) == (200, "application/x-npy"), reply.body
        scores.append(np.load(io.BytesIO(reply.body), allow_pickle=False))

    assert (reply.headers[ID], reply.headers[STEP]) == ("by-npy", "9")
    assert_close(np.concatenate(scores).tolist(), streaming.eager(frames))


def test_an_unknown_session_is_told_and_never_begins_by_itself(streaming: Streaming) -> None:
    """The status is 410 with or without a step, and on another model."""
    frames = draw(3).tolist()
    session, _ = told(streaming.send("disk", frames))

    for headers in ({"id": "never-was"}, {"id": "never-was", "step": 3}):
        assert assert_refused(streaming.send("disk", frames, **headers), 410)["type"] == "SessionUnknown"
    assert_refused(streaming.send("redis", frames, id=session), 410)


def test_an_id_that_cannot_stand_in_a_header_is_refused_and_not_repeated(streaming: Streaming) -> None:
    """The characters and the length of an id are limited."""
    for session in ("a b", "x" * 129, "<script>"):
        refused = streaming.send("disk", [[0.0, 0.0, 0.0]], id=session, start="true")
        assert_refused(refused, 400)
        assert ID not in refused.headers
        assert session not in refused.body.decode()


def test_the_same_step_again_is_answered_with_the_same_bytes(streaming: Streaming) -> None:
    """The first chunk, one in the middle, and the last one are repeated; the session is unaffected."""
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


def test_a_gap_is_refused_and_nothing_is_lost(streaming: Streaming) -> None:
    """A step too far, an old one, and another chunk for an applied step are refused; the right one works."""
    frames = draw(12)
    pieces = cut(frames, 3, 6, 9)
    session, _ = told(streaming.send("disk", pieces[0]))
    told(streaming.send("disk", pieces[1], id=session, step=3))

    for step, kind in ((9, "StepGap"), (0, "StepGap"), (3, "StepTaken")):
        assert assert_refused(streaming.send("disk", pieces[2], id=session, step=step), 409)["type"] == kind
    reply = streaming.send("disk", pieces[2], id=session, step=6)
    assert_close(reply.json["scores"], streaming.eager(frames)[6:9])


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
    """Without steps, no chunk is lost or mixed, and the session has the applied ones."""
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
    """The other one is refused; the same chunk sent twice at once is applied once, with equal answers."""
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


def test_after_its_end_a_session_is_over_until_it_starts_anew(streaming: Streaming) -> None:
    """A session ends with its last chunk, or with an end without a body."""
    frames = draw(4)
    for name, ending in (("ends-with", frames.tolist()), ("ends-alone", None)):
        told(streaming.send("disk", frames.tolist(), id=name, start="true"))
        reply = streaming.send("disk", ending, id=name, end="true")
        assert told(reply) == (name, 4 if ending is None else 8)
        assert_refused(streaming.send("disk", frames.tolist(), id=name), 410)
        anew = streaming.send("disk", frames.tolist(), id=name, start="true")
        assert_close(anew.json["scores"], streaming.eager(frames))


def test_beyond_the_most_sessions_a_new_one_is_refused_with_a_time_to_wait(streaming: Streaming) -> None:
    """Open sessions continue, and the end of one makes room."""
    piece = [[0.0, 0.0, 0.0]]
    sessions = [told(streaming.send("few", piece))[0] for _ in range(2)]
    refused = streaming.send("few", piece)
    assert_refused(refused, 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 600
    told(streaming.send("few", piece, id=sessions[0]))
    told(streaming.send("few", id=sessions[1], end="true"))
    told(streaming.send("few", piece))


def test_a_client_carries_its_session_in_a_token(streaming: Streaming) -> None:
    """The token is sent back; an old one is answered as before, and a changed one is refused."""
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


def assert_others_are_served(streaming: Streaming, model: str) -> None:
    """Check that a session of a single request, which needs no store, is answered."""
    frames = draw(5)
    reply = streaming.send(model, frames.tolist(), start="true", end="true")
    assert reply.status == 200, reply.body
    assert_close(reply.json["scores"], streaming.eager(frames))


def assert_unavailable(reply: Reply) -> None:
    """Check for the right kind of error, which can be retried."""
    assert assert_refused(reply, 503)["type"] == "StoreUnavailable"
    assert int(reply.headers["retry-after"]) >= 1


def recovered(streaming: Streaming, model: str, body: object, headers: Mapping[str, object]) -> Reply:
    """The answer, once it is not 503."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while (reply := streaming.send(model, body, **headers)).status == 503 and time.monotonic() < deadline:
        time.sleep(0.1)
    return reply


def test_a_damaged_record_is_told_to_its_own_session_alone(streaming: Streaming) -> None:
    """Its status is 500, while others in the same batches continue; a new session can begin."""
    frames = draw(6)
    damaged, sound = (told(streaming.send("disk", frames[:3].tolist()))[0] for _ in range(2))
    with closing(sqlite3.connect(streaming.sessions / "disk.sessions", timeout=30)) as connection, connection:
        (record,) = connection.execute(
            "SELECT record FROM session WHERE key = ?", (store_key(damaged, "disk"),)
        ).fetchone()
        changed = record[:-1] + bytes([record[-1] ^ 1])
        connection.execute(
            "UPDATE session SET record = ?, revision = revision - 1 WHERE key = ?",
            (changed, store_key(damaged, "disk")),
        )
    with ThreadPoolExecutor(2) as clients:
        piece = frames[3:].tolist()
        refused, answered = clients.map(lambda session: streaming.send("disk", piece, id=session), (damaged, sound))

    assert assert_refused(refused, 500)["type"] == "SessionDamaged"
    assert told(answered) == (sound, 6)
    assert_close(answered.json["scores"], streaming.eager(frames)[3:])
    told(streaming.send("disk", piece))


def test_a_damaged_store_is_told_and_replaced_without_a_restart(streaming: Streaming) -> None:
    """Sessions get 503, and other requests their answers; after removal of the file, sessions begin again."""
    frames = draw(4)
    session, _ = told(streaming.send("disk", frames.tolist()))
    before = streaming.server.worker_pids("disk")
    file = streaming.sessions / "disk.sessions"
    assert file.stat().st_mode & 0o077 == 0
    for path in streaming.sessions.glob("disk.sessions*"):
        path.unlink()
    garbage = file.with_name("garbage")
    garbage.write_bytes(b"\x00garbage " * 5000)
    garbage.replace(file)

    for headers in ({"id": session, "step": 4}, {"start": "true"}):
        for _ in range(3):
            assert_unavailable(streaming.send("disk", frames.tolist(), **headers))
            assert_others_are_served(streaming, "disk")
    for path in streaming.sessions.glob("disk.sessions*"):
        path.unlink()
    assert_refused(recovered(streaming, "disk", frames.tolist(), {"id": session, "step": 4}), 410)
    session, _ = told(streaming.send("disk", frames.tolist()))
    told(streaming.send("disk", frames.tolist(), id=session, step=4))
    assert streaming.server.worker_pids("disk") == before


def ready(streaming: Streaming, model: str) -> tuple[int, bool]:
    """The status of a probe, and whether the model has its store; the answer names no path of the host."""
    reply = get(streaming.server.inference, f"/predictions/{model}", {"describe": "True"})
    assert str(streaming.sessions.parent) not in reply.body.decode()
    return reply.status, reply.json["readiness"]["store"]


def test_sessions_go_on_when_their_server_is_back(streaming: Streaming) -> None:
    """Without their server they get 503; applied chunks stay applied, and no restart is needed."""
    frames = draw(9)
    pieces = cut(frames, 3, 6)
    session, _ = told(streaming.send("redis", pieces[0]))
    before = streaming.server.worker_pids("redis")
    for number in (1, 2):
        streaming.redis.kill()
        for _ in range(3):
            assert_unavailable(streaming.send("redis", pieces[number], id=session, step=3 * number))
            assert_others_are_served(streaming, "redis")
        assert ready(streaming, "redis") == (503, False)
        streaming.redis.start()
        reply = recovered(streaming, "redis", pieces[number], {"id": session, "step": 3 * number})
        assert told(reply) == (session, 3 * number + 3)
        assert_close(reply.json["scores"], streaming.eager(frames)[3 * number : 3 * number + 3])

    assert ready(streaming, "redis") == (200, True)
    assert streaming.server.worker_pids("redis") == before


def test_sessions_of_other_shards_go_on_while_one_is_gone(streaming: Streaming) -> None:
    """Those of the killed server get 503 until it is back, and then go on where they were."""
    frames = draw(9)
    pieces = cut(frames, 3, 6)
    names = [id_in_partition("session", "cluster", partition) for partition in range(PARTITIONS)]
    tags = partition_tags("cluster")

    def send(number: int, **headers: object) -> list[Reply]:
        with ThreadPoolExecutor(PARTITIONS) as clients:
            sent = [clients.submit(streaming.send, "cluster", pieces[number], id=name, **headers) for name in names]
        return [one.result() for one in sent]

    for reply in send(0, start="true"):
        told(reply)
    killed = streaming.cluster.primaries[1]
    is_gone = [streaming.cluster.owner(hash_slot(tag)) is killed for tag in tags]
    killed.kill()
    replies = send(1, step=3)
    again = send(1, step=3)

    for gone, reply, repeated in zip(is_gone, replies, again, strict=True):
        if gone:
            assert_unavailable(reply)
            assert_unavailable(repeated)
        else:
            assert_close(reply.json["scores"], streaming.eager(frames)[3:6])
            assert (repeated.status, repeated.body) == (200, reply.body)
    assert 0 < sum(is_gone) < PARTITIONS
    assert ready(streaming, "cluster") == (200, True)
    killed.start()
    for number in (1, 2):
        for name in names:
            reply = recovered(streaming, "cluster", pieces[number], {"id": name, "step": 3 * number})
            assert told(reply) == (name, 3 * number + 3)
            assert_close(reply.json["scores"], streaming.eager(frames)[3 * number : 3 * number + 3])
