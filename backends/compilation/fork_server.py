"""Fork server: a process that imports torch once, and forks compiling processes.

Importing torch and what reads a program takes 4 s of CPU time on slow processors; a fork takes 50 ms. The idea is that
of `multiprocessing`'s fork server, which has a socket file in the temporary directory (a long path is refused), passes
no environment, and stays to the end of the process.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..subprocesses import PACKAGE, package_path

# Without the current directory on the path: a user's file may have the name of one of our modules or of Python's.
_CODE = "import sys; sys.path[:] = filter(None, sys.path); from {module} import main; main()"
_DIED = "the process that starts compiling processes ended: was it killed?"


class ForkedProcess:
    """A forked process: pipes to its standard streams, and its end as the fork server reports it.

    Raises:
        ForkServerDied: the fork server ended before it had started the process.
    """

    def __init__(self, stdin: int, stdout: int, report: int) -> None:
        self.stdin: IO[str] = os.fdopen(stdin, "w", encoding="utf-8")
        self.stdout: IO[str] = os.fdopen(stdout, encoding="utf-8")
        self._report = os.fdopen(report, encoding="ascii")
        # One thread may wait for the end while another asks for the id and kills the process.
        self._starting, self._ending = threading.Lock(), threading.Lock()
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """The process id, which is also that of its process group."""
        with self._starting:
            if self._pid is None:
                self._pid = self._reported()
            return self._pid

    def kill(self) -> None:
        """Kill the process with those that it started in its group, and wait for its end."""
        with suppress(ForkServerDied):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def poll(self) -> int | None:
        """Return the exit code, as `subprocess.Popen` has it; None while the process runs."""
        assert self.pid
        if self._code is None and not select.select([self._report], [], [], 0)[0]:
            return None
        return self.wait()

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        assert self.pid  # which is reported first
        with self._ending:
            if self._code is None:
                self._code = self._reported()
            return self._code

    def _reported(self) -> int:
        line = self._report.readline()
        if not line:
            raise ForkServerDied(_DIED)
        return int(line)

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self.stdin, self.stdout, self._report):
            with suppress(BrokenPipeError):  # data that was not yet written to a dead process
                pipe.close()


class ForkServerDied(RuntimeError):
    """The fork server ended unexpectedly."""


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
            process = _ask_for_process(self._running(), stderr.fileno())
        environment = {**os.environ, "TMPDIR": str(directory), "PYTHONPATH": package_path()}
        with suppress(BrokenPipeError):  # the end of the server is reported where the process is used
            print(json.dumps({"directory": str(directory), "environment": environment}), file=process.stdin, flush=True)
        return process

    def _running(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None or self._requests is None:
            self._requests, theirs = socket.socketpair()
            with theirs:
                # A folder of PYTHONPATH is that of a process, and not of the server, which may outlive it.
                root = str(Path(sys.modules[PACKAGE].__path__[0]).parent)
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _CODE.format(module=f"{__package__}.forking"), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": root},
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


def _ask_for_process(requests: socket.socket, stderr: int) -> ForkedProcess:
    stdin, our_stdin = os.pipe()
    our_stdout, stdout = os.pipe()
    our_report, report = os.pipe()
    process = ForkedProcess(our_stdin, our_stdout, our_report)
    try:
        socket.send_fds(requests, [b"+"], [stdin, stdout, stderr, report])
    except ConnectionError as error:
        process.close()
        raise ForkServerDied(_DIED) from error
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
