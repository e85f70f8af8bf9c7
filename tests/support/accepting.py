"""A port whose connections are served by a function of a test."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def accepting(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of this machine, for a while; `serve` gets each connection in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, serve), daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with suppress(OSError):  # until the listener is closed
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()
