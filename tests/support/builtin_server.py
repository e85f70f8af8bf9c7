"""A running `neuron-lstm serve --server builtin`, and its streams."""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from running_command import Command, started
from torchserve_process import free_ports
from waiting import wait_for
from websockets.sync.client import ClientConnection, connect


class Server(NamedTuple):
    command: Command
    http: int
    grpc: int

    def wait_for_line(self, line: str) -> None:
        wait_for(lambda: line in self.command.text)

    def stream(
        self, model: str = "stream", *, query: str = "", **options: Any
    ) -> AbstractContextManager[ClientConnection]:
        """Open a stream of a model, with the session fields of `query`."""
        url = f"ws://127.0.0.1:{self.http}/models/{model}/stream?{query}"
        stream: AbstractContextManager[ClientConnection] = connect(
            url, open_timeout=60, close_timeout=60, proxy=None, **options
        )
        return stream


@contextmanager
def serving(folder: Path, *words: str | Path) -> Iterator[Server]:
    http, port = free_ports(2)
    options = ["--server", "builtin", "--port", http, "--grpc-port", port, "--drain-seconds", 1]
    with started(folder, "serve", *map(str, [*words, *options])) as command:
        command.wait_until_served()
        yield Server(command, http, port)
        assert command.process.poll() is not None or command.end(signal.SIGINT) == 0
        assert command.left() == []
