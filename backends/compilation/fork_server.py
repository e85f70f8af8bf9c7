"""Fork server: a process that imports torch once, and forks compiling processes.

Importing torch and what reads a program takes 4 s of CPU time on slow processors; a fork takes 50 ms. The idea is that
of `multiprocessing`'s fork server, which has a socket file in the temporary directory (a long path is refused), passes
no environment, and stays to the end of the process.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..subprocesses import package_path, python_command
from .forked_process import ForkedProcess, ForkServerDied


class ForkServer:
    """A fork server, which is started for its first process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def prepare(self) -> None:
        """Start the server, if it does not run: it imports while the caller does something else."""
        with self._lock:
            self._running()

    def start(self, directory: Path, log: Path) -> ForkedProcess:
        """Start a compiling process with this process's environment.

        Its working directory and its temporary directory are `directory`; its standard error goes to `log`.

        Raises:
            ForkServerDied: the fork server ended unexpectedly.
        """
        with log.open("wb") as stderr, self._lock:
            try:
                process = _ask_for_process(self._running(), stderr.fileno())
            except ForkServerDied:  # just now
                self._end()
                process = _ask_for_process(self._running(), stderr.fileno())
        environment = {**_environment(), "TMPDIR": str(directory)}
        with suppress(BrokenPipeError):  # the end of the server is reported where the process is used
            print(json.dumps({"directory": str(directory), "environment": environment}), file=process.stdin, flush=True)
        return process

    def _running(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None or self._requests is None:
            self._requests, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [*python_command(f"{__package__}.forking", "main"), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=_environment(),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        return self._requests

    def stop(self) -> None:
        """End the server. The processes that it started go on."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            self._process.kill()  # it may be importing
            self._process.wait()
        self._requests = self._process = None


def _environment() -> dict[str, str]:
    # Some launchers pass a variable without a name, which Python cannot set.
    return {**{name: value for name, value in os.environ.items() if name}, "PYTHONPATH": package_path()}


def _ask_for_process(requests: socket.socket, stderr: int) -> ForkedProcess:
    stdin, our_stdin = os.pipe()
    our_stdout, stdout = os.pipe()
    our_report, report = os.pipe()
    process = ForkedProcess(our_stdin, our_stdout, our_report)
    try:
        socket.send_fds(requests, [b"+"], [stdin, stdout, stderr, report])
    except ConnectionError as error:
        process.close()
        raise ForkServerDied from error
    finally:
        for file in (stdin, stdout, report):
            os.close(file)
    return process


class _Shared:
    """The fork server of this process, and the number of blocks that use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.server = ForkServer()
        self.blocks = 0


_shared = _Shared()
atexit.register(_shared.server.stop)


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Provide the fork server of this process, which ends with the last of the blocks that use it."""
    with _shared.lock:
        _shared.blocks += 1
    try:
        yield _shared.server
    finally:
        with _shared.lock:
            _shared.blocks -= 1
            if not _shared.blocks:
                _shared.server.stop()
