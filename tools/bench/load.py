"""Many clients of one HTTP server, in one thread: each sends its next request after its last answer."""

from __future__ import annotations

import random
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median, quantiles

from .harness import BenchmarkFailed

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length:"
_CHUNKED = b"transfer-encoding: chunked"
_LAST_CHUNK = b"0\r\n\r\n"
_SECONDS = 60  # limit of an answer


@dataclass(frozen=True)
class Loaded:
    """A server under load for a while."""

    milliseconds: Sequence[float]
    """Milliseconds of each response, as its client saw it."""
    seconds: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.milliseconds) / self.seconds

    @property
    def p50(self) -> float:
        """Milliseconds within which half of the answers arrived."""
        return median(self.milliseconds)

    @property
    def p99(self) -> float:
        """Milliseconds within which 99 % of the answers arrived."""
        return quantiles(self.milliseconds, n=100)[98]


def http_post(path: str, body: bytes) -> bytes:
    """Return the bytes of a whole request."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + _END_OF_HEAD + body


def load(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> Loaded:
    """Send random requests for some seconds over kept connections; raises `BenchmarkFailed` unless all get 200."""
    milliseconds: list[float] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        opened = (socket.create_connection(("127.0.0.1", port), _SECONDS) for _ in range(connections))
        clients = [_Client(stack.enter_context(connection)) for connection in opened]
        began = time.perf_counter()
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.send(random.choice(requests))
        waiting = len(clients)
        while waiting:
            readable = selector.select(_SECONDS)
            if not readable:
                raise BenchmarkFailed(f"no answer within {_SECONDS} s")
            for key, _ in readable:
                client = key.data
                if not client.receive():
                    continue
                now = time.perf_counter()
                milliseconds.append((now - client.sent) * 1000)
                if now - began < seconds:
                    client.send(random.choice(requests))
                else:
                    selector.unregister(client.socket)
                    waiting -= 1
        return Loaded(milliseconds, time.perf_counter() - began)


@dataclass
class _Client:
    socket: socket.socket
    sent: float = 0.0
    received: bytes = b""

    def send(self, request: bytes) -> None:
        self.received = b""
        self.sent = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Whether the answer is whole."""
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise BenchmarkFailed("the server hung up")
        self.received += piece
        head, end, body = self.received.partition(_END_OF_HEAD)
        if not end:
            return False
        lines = head.lower().split(b"\r\n")
        if b" 200 " not in lines[0] + b" ":
            raise BenchmarkFailed(self.received[:500].decode(errors="replace"))
        if _CHUNKED in lines:
            return body.endswith(_LAST_CHUNK)
        (length,) = (int(line[len(_LENGTH) :]) for line in lines if line.startswith(_LENGTH))
        return len(body) >= length
