"""Process that the fork server started: its pipes, its id and its end, as those of `subprocess.Popen`."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from typing import IO


class ForkServerDied(RuntimeError):
    """The fork server ended unexpectedly."""

    def __init__(self) -> None:
        super().__init__("the process that starts compiling processes ended: was it killed?")


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
            raise ForkServerDied
        return int(line)

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self.stdin, self.stdout, self._report):
            with suppress(BrokenPipeError):  # data that was not yet written to a dead process
                pipe.close()
