"""Requests at a fixed rate, from clients that do not wait for the responses to earlier ones."""

from __future__ import annotations

import gc
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

_END_OF_HEAD = b"\r\n\r\n"
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Answered:
    """One response."""

    status: int
    """0: the server closed the connection, or did not answer within 10 seconds."""
    sent: float
    """Unix time in seconds."""
    received: float


@dataclass
class _Client:
    socket: socket.socket
    sent: float = 0.0
    received: bytes = b""

    def send(self, request: bytes) -> None:
        self.received, self.sent = b"", time.time()
        self.socket.sendall(request)

    def status(self) -> int | None:
        """Read what has come; the status of a whole response, 0 if the connection was closed before, else None."""
        piece = self.socket.recv(1 << 16)
        self.received += piece
        head, end, body = self.received.partition(_END_OF_HEAD)
        if not end:
            return None if piece else 0
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        whole = len(body) >= int(fields.get(b"content-length", b"0"))
        return int(head.split(b" ", 2)[1]) if whole else None if piece else 0


@dataclass
class _Clients:
    """Connections that are kept after a 200; TorchServe closes them after any other status."""

    port: int
    stack: ExitStack
    selector: selectors.BaseSelector
    idle: list[_Client] = field(default_factory=list)
    busy: int = 0

    def send(self, request: bytes) -> None:
        client = self.idle.pop() if self.idle else self._new()
        client.send(request)
        self.selector.register(client.socket, selectors.EVENT_READ, client)
        self.busy += 1

    def receive(self, seconds: float) -> list[Answered]:
        """Wait so long for responses, and return those that are whole."""
        answered = []
        for key, _ in self.selector.select(max(0.0, seconds)):
            client: _Client = key.data
            if (status := client.status()) is None:
                continue
            answered.append(Answered(status, client.sent, time.time()))
            self.selector.unregister(client.socket)
            self.busy -= 1
            if status == 200:
                self.idle.append(client)
            else:
                client.socket.close()
        return answered

    def _new(self) -> _Client:
        return _Client(self.stack.enter_context(socket.create_connection(("127.0.0.1", self.port))))


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python's garbage collector from stopping the clients: with torch imported it takes a tenth of a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def send_at_rate(port: int, draw: Callable[[float], bytes], per_second: float, seconds: float) -> list[Answered]:
    """Send `draw(unix seconds)` so many times per second, at even distances, and wait for all responses."""
    answered: list[Answered] = []
    with ExitStack() as stack, _without_collections(), selectors.DefaultSelector() as selector:
        clients = _Clients(port, stack, selector)
        began, number = time.time(), 0
        while (due := began + number / per_second) < began + seconds:
            if (wait := due - time.time()) > 0:
                answered += clients.receive(wait)
            else:
                clients.send(draw(time.time()))
                number += 1
        give_up = time.time() + _PATIENCE_SECONDS
        while clients.busy and time.time() < give_up:
            answered += clients.receive(0.1)
        answered += [Answered(0, began, time.time())] * clients.busy
    return answered
