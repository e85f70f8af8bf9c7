"""Streams over WebSockets to a running server: answers are those of REST, in order, and each chunk is applied once."""

import io
import json
import os
import secrets
import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from builtin_server import Server, serving
from host_archives import Archives, assert_scores_of_the_whole
from mixed_requests import NPY, frames_of, npy
from rest import JSON, get, post
from session_service import END, ID, START, STEP
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

pytestmark = pytest.mark.timeout(300)
FRAMES = frames_of(12)
CHUNKS = [FRAMES[start : start + 3] for start in range(0, 12, 3)]
TEXTS = [json.dumps(chunk.tolist()) for chunk in CHUNKS]


@pytest.fixture(scope="module")
def server(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    paths = map(archives.path, ("stream", "scorer", "tagger"))
    with serving(tmp_path_factory.mktemp("server"), *paths, "--allow-origin", "http://pages") as running:
        yield running


def ask(stream: ClientConnection, *messages: str | bytes) -> list[str | bytes]:
    """Send all messages, and then read as many answers."""
    for message in messages:
        stream.send(message)
    return [stream.recv(timeout=60) for _ in messages]


def told(answers: list[str | bytes]) -> list[dict[str, object]]:
    return [json.loads(answer) for answer in answers]


def cut(stream: ClientConnection) -> None:
    """End the connection as a network that fails: without a farewell."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def test_chunks_have_the_bytes_of_rest_and_continue_one_session(server: Server) -> None:
    mine, rest = "streamed-" + secrets.token_hex(8), "rest-of-it-" + secrets.token_hex(8)
    with server.stream(query=f"{ID}={mine}&{START}=true") as stream:
        answers = ask(stream, *TEXTS, json.dumps({END: True}))
    for index, (text, answer) in enumerate(zip(TEXTS, answers, strict=False)):
        headers = {**JSON, ID: rest, STEP: str(3 * index), START: str(index == 0).lower()}
        body = post(server.http, "/predictions/stream", text.encode(), headers).body
        assert body.replace(rest.encode(), mine.encode()).decode() == answer

    assert json.loads(answers[-1]) == {ID: mine, STEP: 12}


def test_arrays_are_answered_by_the_arrays_of_rest(server: Server, archives: Archives) -> None:
    mine = secrets.token_urlsafe(18)
    with server.stream(query=f"{ID}={mine}&{START}=true") as stream:
        answers = ask(stream, *map(npy, CHUNKS))
    headers = {**NPY, ID: mine, STEP: "9"}
    assert answers[-1] == post(server.http, "/predictions/stream", npy(CHUNKS[-1]), headers).body
    scores = [np.load(io.BytesIO(cast("bytes", answer))) for answer in answers]
    assert_scores_of_the_whole(archives, FRAMES, scores)

    with server.stream("scorer") as stream:  # no session: each message is a sequence
        assert ask(stream, npy(FRAMES)) == [post(server.http, "/predictions/scorer", npy(FRAMES), NPY).body]


def test_a_failed_chunk_is_not_replaced_by_those_behind_it(server: Server) -> None:
    with server.stream() as stream:
        first, bad, behind = told(ask(stream, TEXTS[0], "[[1, 2", TEXTS[2]))
        assert (first[STEP], bad["code"], bad["type"]) == (3, 400, "MalformedBody")
        assert (behind["code"], behind["type"]) == (409, "ChunkBeforeFailed")

        def step(index: int, at: int) -> str:
            return json.dumps({"frames": CHUNKS[index].tolist(), STEP: at})

        gap, second, again, without = ask(stream, step(3, 9), step(1, 3), step(1, 3), TEXTS[2])
        assert json.loads(gap)["type"] == "StepGap"
        assert json.loads(second)[STEP] == 6
        assert second == again
        assert json.loads(without)[STEP] == 9


def test_a_stream_that_is_cut_continues_with_each_chunk_applied_once(server: Server, archives: Archives) -> None:
    mine, scores = secrets.token_urlsafe(18), []
    for index, text in enumerate(TEXTS):
        query = f"{ID}={mine}&{START if index == 0 else STEP}={'true' if index == 0 else 3 * index}"
        for has_answer in (False, False, True):
            with server.stream(query=query) as stream:
                stream.send(text)
                if has_answer:
                    found = json.loads(stream.recv(timeout=60))
                    assert found[STEP] == 3 * index + 3
                    scores.append(found["scores"])
                else:
                    cut(stream)
    assert_scores_of_the_whole(archives, FRAMES, [np.array(one) for one in scores])


def test_streams_share_batches(server: Server, archives: Archives) -> None:
    def batches() -> float:
        lines = get(server.http, "/metrics").body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("neuron_lstm_batch_seconds_count"))

    def run(_: int) -> list[dict[str, object]]:
        with server.stream() as stream:
            return told(ask(stream, *TEXTS * 5))

    before = batches()
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(run, range(8))]
    assert batches() - before < 8 * len(TEXTS) * 5
    for answers in found:
        assert [one[STEP] for one in answers] == [*range(3, 63, 3)]
        assert_scores_of_the_whole(archives, FRAMES, [np.array(one["scores"]) for one in answers[:4]])


def test_who_may_not_open_a_stream_gets_the_status_of_rest(archive: Path, server: Server, tmp_path: Path) -> None:
    def status(of: Server, model: str = "stream", **headers: str) -> int:
        try:
            with of.stream(model, additional_headers=headers):
                return 101
        except InvalidStatus as error:
            return int(json.loads(error.response.body or b"")["code"])

    assert status(server, "nothing") == 404
    assert [status(server, Origin=one) for one in ("http://pages", "http://others", "null")] == [101, 403, 403]
    assert status(server, Origin=f"http://127.0.0.1:{server.http}") == 101
    assert status(server, "stream", **{STEP: "x"}) == 400
    (tmp_path / "token").write_text("secret")
    with serving(tmp_path, archive, "--token-file", tmp_path / "token") as guarded:
        assert [status(guarded, "sums", Authorization=f"Bearer {one}") for one in ("secret", "x")] == [101, 401]


def test_a_message_beyond_the_bound_of_bodies_ends_its_stream_alone(server: Server) -> None:
    with server.stream("scorer") as other, server.stream("scorer") as stream:
        with pytest.raises(ConnectionClosed) as ended:
            ask(stream, " " * 6_553_501)
        assert ended.value.rcvd is None or ended.value.rcvd.code == 1009
        assert told(ask(other, TEXTS[0], "[" * 6_553_500))[1]["code"] in {400, 413}


def test_an_end_answers_the_chunk_in_work_and_tells_clients_to_connect_again(archive: Path, tmp_path: Path) -> None:
    with serving(tmp_path, archive) as server, server.stream("sums") as idle, server.stream("sums") as busy:
        assert len(told(ask(idle, "[1]"))) == 1
        os.killpg(server.command.process.pid, signal.SIGTERM)
        answers = list[str | bytes]()

        def go_on() -> None:
            while True:
                answers.extend(ask(busy, "[1, 2, 3]"))

        with pytest.raises(ConnectionClosed) as ended:
            go_on()
        with pytest.raises(ConnectionClosed) as ended_idle:
            idle.recv(timeout=60)
        assert server.command.process.wait(60) == 0
    assert len({*answers}) == 1
    assert [one.value.rcvd and one.value.rcvd.code for one in (ended, ended_idle)] == [1012, 1012]
