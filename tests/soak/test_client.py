"""Clients against servers that answer right, wrong or not at all: every failure is counted."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from chaos.archive import make_model
from chaos.connection import Connection, Reply
from chaos.expected import expect
from chaos.script import draw_scripts
from chaos.verdict import END, ID, STEP
from soak.archives import TAGGER
from soak.bad_requests import PLAIN_KINDS, Refusal
from soak.bad_sessions import SESSION_KINDS, OpenSession
from soak.client import KINDS, Client, Supply, is_refusal
from soak.good_requests import draw_sentences
from soak.hang_ups import HANG_UPS
from soak.standing import missed
from soak.tally import Tally, answer_standings

MODEL = make_model()
SESSIONS = [(script, expect(MODEL, script)) for script in draw_scripts(sessions=4, chunks=3, tokens=50, seed=0)]
SENTENCES = draw_sentences(MODEL, 20, random.Random(0))
KIND = "an unknown session"
REQUESTS = 100

Answer = Callable[[str, Mapping[str, str], bytes], bytes]
"""A function from the path, the headers (names in lower case) and the body to an HTTP response."""


class RightServer:
    """A server that keeps sessions, answers as the model does, and refuses unknown sessions."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[int]] = {}

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Answer one request."""
        if path.endswith(TAGGER):
            return response(200, self._sequences(body))
        if "unknown" in headers[ID]:
            return response(410, {"code": 410, "type": "SessionUnknown", "message": "no"})
        before = self.sessions.setdefault(headers[ID], [])
        ids = json.loads(body)
        assert int(headers[STEP]) == len(before)
        tags, topic = run([*before, *ids])
        before += ids
        fields = {ID: headers[ID], STEP: len(before)}
        return response(200, {"tags": tags[-len(ids) :], "topic": topic, **fields}, fields)

    def _sequences(self, body: bytes) -> object:
        if body.startswith(b"\x93NUMPY"):
            return dict(zip(("tags", "topic"), run(np.load(io.BytesIO(body)).tolist()), strict=True))
        value = json.loads(body)
        if isinstance(value, list):
            return dict(zip(("tags", "topic"), run(value), strict=True))
        if "instances" in value:
            return {"predictions": [dict(zip(("tags", "topic"), run(ids), strict=True)) for ids in value["instances"]]}
        tags, topic = run(value["inputs"][0]["data"])
        return {
            "outputs": [
                {"name": "tags", "shape": [len(tags), 4], "data": [number for step in tags for number in step]},
                {"name": "topic", "shape": [3], "data": topic},
            ]
        }


@torch.inference_mode()
def run(ids: list[int]) -> tuple[list[list[float]], list[float]]:
    """The model in eager mode."""
    tags, topic = MODEL(torch.tensor([ids]), torch.tensor([len(ids)]))
    return tags[0].tolist(), topic[0].tolist()


def response(status: int, value: object, headers: Mapping[str, object] | None = None) -> bytes:
    """An HTTP response with a JSON body."""
    body = json.dumps(value)
    lines = [f"HTTP/1.1 {status} x", *(f"{name}: {text}" for name, text in (headers or {}).items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()


def tally_of(answer: Answer, kinds: tuple[str, ...] = (KIND,)) -> Tally:
    """The tally of one client after about a hundred requests."""
    tally = Tally()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in head[1:])}
                body = await reader.readexactly(int(headers["content-length"]))
                reply = answer(head[0].split()[1], headers, body)
                writer.write(reply)
                if not reply:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    async def load() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = Connection(port, 5.0)
        supply = Supply(MODEL, SENTENCES, SESSIONS, cycle(kinds))
        await Client(port, connection, supply, tally, random.Random(0)).run(lambda: tally.sent < REQUESTS)
        connection.close()
        server.close()

    asyncio.run(load())
    return tally


def test_a_right_server_holds() -> None:
    """Sessions are sent to their ends, and a tenth of the requests is bad."""
    tally = tally_of(RightServer().answer, (KIND, *HANG_UPS))

    assert missed(answer_standings(tally, (KIND, *HANG_UPS))) == []
    assert tally.wrong == []


def spoilt(spoil: Callable[[int, bytes], bytes]) -> Answer:
    """A right server whose answers are changed; the change gets the number of each."""
    server, count = RightServer(), iter(range(10**6))
    return lambda path, headers, body: spoil(next(count), server.answer(path, headers, body))


def test_one_answer_that_is_lost_is_counted() -> None:
    """The 50th request is not answered."""
    tally = tally_of(spoilt(lambda number, reply: b"" if number == 50 else reply))

    assert tally.good_sent - tally.good_right + (tally.bad_sent - tally.bad_refused).total() == 1
    assert len(tally.wrong) == 1


def test_one_answer_that_is_wrong_is_counted() -> None:
    """A digit of the 50th answer is another one."""
    tally = tally_of(spoilt(lambda number, reply: reply.replace(b"0.", b"1.", 1) if number == 50 else reply))

    assert tally.good_sent - tally.good_right == 1


def test_a_session_that_is_not_continued_is_counted() -> None:
    """The server loses every session; each request of it fails, and so do all sessions."""
    server = RightServer()
    unknown = response(410, {"code": 410, "type": "SessionUnknown", "message": "no"})
    tally = tally_of(lambda *one: server.answer(*one) if one[0].endswith(TAGGER) else unknown)

    assert tally.sessions_begun > 0
    assert tally.sessions_finished == 0
    assert tally.good_right < tally.good_sent


def test_a_session_whose_last_answer_is_wrong_is_not_finished() -> None:
    """All others of its answers are right."""
    server = RightServer()
    tally = tally_of(lambda *one: response(200, {}) if END in one[1] else server.answer(*one))

    assert tally.sessions_begun == tally.good_sent - tally.good_right > 0
    assert tally.sessions_finished == 0


@pytest.mark.parametrize(
    "refusal",
    [
        response(200, {"code": 410, "type": "SessionUnknown", "message": "no"}),
        response(503, {"code": 410, "type": "SessionUnknown", "message": "no"}),
        response(410, {"code": 410, "type": "SessionEnded", "message": "no"}),
        response(410, "SessionUnknown"),
        b"",
    ],
)
def test_a_bad_request_without_its_documented_refusal_is_counted(refusal: bytes) -> None:
    """It was accepted, refused by the server itself, for another reason or without JSON, or not answered."""
    server = RightServer()
    tally = tally_of(lambda *one: refusal if "unknown" in one[1].get(ID, "") else server.answer(*one))

    assert tally.bad_sent.total() > 5
    assert tally.bad_refused.total() == 0
    assert tally.good_right == tally.good_sent


@pytest.mark.parametrize("value", [{}, {"code": 400}, {"code": 400, "type": "MalformedBody"}, [], 1])
def test_a_refusal_has_all_keys(value: Any) -> None:
    """The code, the type, and a message for people."""
    whole = {"code": 400, "type": "MalformedBody", "message": "not JSON"}
    refusal = Refusal(400, "MalformedBody")

    assert is_refusal(Reply(400, {}, json.dumps(whole).encode()), refusal)
    assert not is_refusal(Reply(400, {}, json.dumps(value).encode()), refusal)


def test_kinds_have_names_of_their_own() -> None:
    """Each is counted apart."""
    assert len(set(KINDS)) == len(KINDS) == len(PLAIN_KINDS) + len(SESSION_KINDS) + len(HANG_UPS)


def test_every_documented_refusal_is_a_status_of_the_handler() -> None:
    """The statuses and types are those of README.md, which has a row for each."""
    from torchserve_neuron_lstm.handlers.responses import STATUSES

    bad = [kind() for kind in PLAIN_KINDS.values()] + [kind(OpenSession("a", 1)) for kind in SESSION_KINDS.values()]

    assert all(STATUSES[one.refusal.type] == one.refusal.status for one in bad)
    assert {one.refusal.status for one in bad} == {400, 406, 409, 410, 413, 504}
