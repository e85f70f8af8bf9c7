"""Many clients and a small test server."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from benchmarks.load import Refused, http_post, load, send_each


class Echo(BaseHTTPRequestHandler):
    """A server that answers with the body, in two parts, and refuses the body "bad"."""

    protocol_version = "HTTP/1.1"
    seen: Counter[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen[self.path, body] += 1
        self.send_response(200 if body != b"bad" else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:1])
        self.wfile.flush()
        self.wfile.write(body[1:])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has in the class above
        """Print no log."""


@pytest.fixture
def server() -> Iterator[tuple[int, Counter[tuple[str, bytes]]]]:
    """The port of a server, and the requests that it got."""
    seen: Counter[tuple[str, bytes]] = Counter()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Counting", (Echo,), {"seen": seen}))
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield http.server_address[1], seen
    http.shutdown()
    thread.join()
    http.server_close()


def test_every_request_is_answered_and_timed(server: tuple[int, Counter[tuple[str, bytes]]]) -> None:
    """Each client sends at least one request, and only the given ones."""
    port, seen = server
    requests = [http_post("/a", b"[1, 2]"), http_post("/b", b"x" * 100_000)]

    done = load(port, requests, connections=4, seconds=0.3)

    assert len(done.milliseconds) == sum(seen.values()) >= 4
    assert set(seen) <= {("/a", b"[1, 2]"), ("/b", b"x" * 100_000)}
    assert done.seconds >= 0.3
    assert all(0 < milliseconds <= done.seconds * 1000 for milliseconds in done.milliseconds)


@pytest.mark.parametrize("connections", [1, 3, 20])
def test_each_request_is_sent_once(server: tuple[int, Counter[tuple[str, bytes]]], connections: int) -> None:
    """This holds for any number of clients, also for more clients than requests."""
    port, seen = server
    done = send_each(port, [http_post(f"/{number}", b"[]") for number in range(10)], connections)

    assert seen == {(f"/{number}", b"[]"): 1 for number in range(10)}
    assert len(done.milliseconds) == 10


def test_further_headers_stand_in_the_request() -> None:
    """They come after the usual headers."""
    head = http_post("/a", b"", headers={"X-One": "1", "X-Two": "2"}).decode()

    assert head.endswith("Content-Length: 0\r\nX-One: 1\r\nX-Two: 2\r\n\r\n")


def test_a_refusal_ends_it(server: tuple[int, Counter[tuple[str, bytes]]]) -> None:
    """A benchmark of refusals would be meaningless."""
    with pytest.raises(Refused, match="400"):
        load(server[0], [http_post("/a", b"bad")], connections=2, seconds=0.3)


def test_a_server_that_hangs_up_ends_it() -> None:
    """The server closes the connection before its answer or within it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_half() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12")

        thread = threading.Thread(target=answer_half)
        thread.start()
        with pytest.raises(Refused, match="hung up"):
            load(listening.getsockname()[1], [http_post("/a", b"")], connections=1, seconds=0.3)
        thread.join()
