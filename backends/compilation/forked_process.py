"""Process that the fork server started: its pipes, its id and its end, as those of `subprocess.Popen`."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from typing import IO


class ForkServerDied(RuntimeError):
    """The fork server ended unexpectedly, or could not fork."""

    def __init__(self) -> None:
        super().__init__(
            "no compiling process can be started: the process that forks them ended, or the system has no room for "
            "another one. It wrote the cause to standard error, unless it was killed"
        )


class ForkedProcess:
    """A forked process: pipes to its standard streams, and its end as the fork server reports it.

    Raises:
        ForkServerDied: the process was not started, or nothing reports its end any more.
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
