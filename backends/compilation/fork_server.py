"""Fork server: a process that imports torch once, and forks compiling processes.

Importing torch and what reads a program takes 4 s of CPU time on slow processors; a fork takes 50 ms. The idea is that
of `multiprocessing`'s fork server, which imports the caller's main module again in each process (a script without a
guard fails), has a socket file in the temporary directory (a long path is refused), passes no environment, and stays to
the end of the process.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..subprocesses import package_path, python_command


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

        Raises `ForkServerDied`: the fork server ended unexpectedly.
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


class ForkServerDied(RuntimeError):
    """The fork server ended unexpectedly, or could not fork."""

    def __init__(self) -> None:
        super().__init__(
            "no compiling process can be started: the process that forks them ended, or the system has no room for "
            "another one. It wrote the cause to standard error, unless it was killed"
        )


class ForkedProcess:
    """A forked process: pipes to its standard streams, and its end as the fork server reports it.

    Raises `ForkServerDied`: the process was not started, or nothing reports its end any more.
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
        return self._await_start()

    def kill(self) -> None:
        """Kill the process with those that it started in its group, and wait for its end."""
        try:
            # The group of a process that ended is gone, and another group may have its number.
            is_running = self.poll() is None
        except ForkServerDied:
            is_running = self._pid is not None
        if is_running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(ForkServerDied):
                self.wait()

    def is_started(self) -> bool:
        """Whether the process was started, or never will be."""
        return self._pid is not None or self._has_report()

    def poll(self) -> int | None:
        """Return the exit code, as `subprocess.Popen` has it; None while the process runs."""
        self._await_start()
        if self._code is None and not self._has_report():
            return None
        return self.wait()

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        self._await_start()
        with self._ending:
            if self._code is None:
                self._code = self._reported()
            return self._code

    def _await_start(self) -> int:
        with self._starting:
            if self._pid is None:
                self._pid = self._reported()  # before the exit code
            return self._pid

    def _has_report(self) -> bool:
        report = select.poll()
        report.register(self._report, select.POLLIN)
        return bool(report.poll(0))

    def _reported(self) -> int:
        line = self._report.readline()
        if not line:
            raise ForkServerDied
        return int(line)

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self.stdin, self.stdout, self._report):
            with suppress(BrokenPipeError):  # data that was not yet written to a dead process
                pipe.close()
