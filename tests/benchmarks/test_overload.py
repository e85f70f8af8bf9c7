"""Clients that do not wait, and the judgement of what they were answered."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from benchmarks.load import http_post
from benchmarks.overload.__main__ import Round, draw_bodies, standings, summarise
from benchmarks.overload.open_loop import Answered, send_at_rate
from benchmarks.standing import missed

SLOW_SECONDS = 0.2


def answer(client: socket.socket) -> None:
    """Answer a connection: `late` slowly, `bad` with 504, `gone` not at all, others with 200."""
    with closing(client):
        while request := client.recv(1 << 16):
            body = request.partition(b"\r\n\r\n")[2]
            if body == b"gone":
                return
            if body == b"late":
                time.sleep(SLOW_SECONDS)
            status = b"504 Gateway Timeout" if body == b"bad" else b"200 OK"
            client.sendall(b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\n\r\n[]")


@pytest.fixture
def port() -> Iterator[int]:
    """A server with a thread for each connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_every_request_has_one_response_or_is_told_as_lost(port: int) -> None:
    """A refusal, a slow response and a closed connection keep nobody else from being sent."""
    bodies = iter([b"good", b"late", b"bad", b"gone", b"good"])
    answered = send_at_rate(port, lambda _: http_post("/", next(bodies)), per_second=50, seconds=0.1)

    assert sorted(one.status for one in answered) == [0, 200, 200, 200, 504]
    slow = max(answered, key=lambda one: one.received - one.sent)
    assert slow.received - slow.sent >= SLOW_SECONDS
    assert slow.sent < min(one.received for one in answered) + SLOW_SECONDS


def test_the_deadline_is_compared_with_every_response() -> None:
    """The latest may be a refusal; only 200 counts as answered."""
    answered = [Answered(200, 0.0, 0.04), Answered(200, 1.0, 1.06), Answered(504, 2.0, 2.08)]
    found = summarise(answered, deadline_ms=50, capacity=1.0, batch_ms=20.0, offered=3.0, seconds=2.0)

    assert found.statuses == {200: 2, 504: 1}
    assert found.answered == 1.0
    assert found.latest_ms == pytest.approx({200: 10, 504: 30})
    assert found.late_200 == 0.5


def test_a_late_or_a_lost_response_and_a_collapse_miss_a_floor() -> None:
    """Each floor can be missed alone: the rate by most of the rounds, the others by one."""

    def one(statuses: dict[int, int], answered: float, latest_ms: float) -> Round:
        return Round(100.0, 20.0, 300.0, statuses, answered, {200: latest_ms, 503: -40.0}, 0.0)

    def lines(*rounds: Round) -> list[str]:
        return [line.split(":")[1] for line in missed(standings(rounds))]

    good, slow = one({200: 900, 504: 2000}, 90.0, 19.0), one({200: 900}, 89.0, 0.0)

    assert lines(good, good, slow) == []
    assert lines(good, slow, slow) == [" answered per second under overload, of the rate without (median)"]
    assert lines(good, good, one({200: 900}, 95.0, 21.0)) == [" latest response of all after its deadline, in batches"]
    assert lines(good, good, one({200: 900, 0: 1}, 95.0, 0.0)) == [" requests without a response"]


def test_requests_are_the_same_in_every_run() -> None:
    """A run can be compared with another one."""
    assert draw_bodies() == draw_bodies()
