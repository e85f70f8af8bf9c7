"""A proxy that cuts connections just before an answer arrives: the server has done the work."""

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from accepting import accepting


@dataclass
class Way:
    """The state of the proxy: its port, and the number of answers to lose."""

    port: int = 0
    answers_to_lose: int = 0


@contextmanager
def lossy_way(port: int) -> Iterator[Way]:
    """A port of this machine that forwards to `port`, until answers shall be lost."""
    way = Way()
    with accepting(lambda client: _relay(client, way, port)) as way.port:
        yield way


def _relay(client: socket.socket, way: Way, port: int) -> None:
    with client, suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
        other = {client: server, server: client}
        while True:
            for ready in select.select([*other], [], [])[0]:
                if not (received := ready.recv(1 << 16)):
                    return
                if ready is server and way.answers_to_lose:
                    way.answers_to_lose -= 1
                    return
                other[ready].sendall(received)
