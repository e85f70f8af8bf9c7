"""Compiling processes of one packaging: started when programs need them, and kept for the next ones.

They are forked from one process, because importing torch takes seconds. Each has a process group and a temporary
directory of its own, and the compilers that it starts end with it. `forking.py` is what it runs.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from ..cores import available_cores
from ..subprocesses import describe_exit
from .fork_server import ForkedProcess, ForkServer, ForkServerDied, fork_server
from .job import CompileJob, CompileOutcome, crash_of

_LAST_LINES = 20


@contextmanager
def compile_processes(scratch: Path) -> Iterator[CompileProcesses]:
    """Provide compiling processes; at the end of the block, they end with the compilers that they started.

    `scratch` is a private directory for the compilers' files.
    """
    with fork_server() as server:
        processes = CompileProcesses(server, scratch)
        try:
            yield processes
        finally:
            processes.stop()
            processes.close()


class CompileProcesses:
    """The compiling processes of one `compile_processes` block."""

    def __init__(self, server: ForkServer, scratch: Path) -> None:
        self._server = server
        self._scratch = scratch
        self._numbers = count()
        self._running: list[CompileProcess] = []
        self._stopped: list[CompileProcess] = []

    def prepare(self) -> None:
        """Begin the import that all processes share, beside other work of the caller."""
        self._server.prepare()

    def take(self, wanted: int) -> list[CompileProcess]:
        """Return so many processes, or one for each core."""
        number = min(wanted, available_cores())
        while len(self._running) < number:
            self._running.append(CompileProcess(self._server, self._scratch / f"worker{next(self._numbers)}"))
        return self._running[:number]

    def stop(self) -> None:
        """Stop all processes, so that no thread waits for one; later programs get others.

        Their pipes stay open until `close`, since a thread may read from them.
        """
        for process in self._running:
            process.stop()
        self._stopped += self._running
        self._running = []

    def close(self) -> None:
        """Close the pipes to the processes that have stopped, when no thread reads from them."""
        for process in self._stopped:
            process.close()
        self._stopped = []


class CompileProcess:
    """A compiling process, started for its first job and again after its end."""

    def __init__(self, server: ForkServer, scratch: Path) -> None:
        self._server = server
        self._scratch = scratch
        self._process: ForkedProcess | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def compile(self, job: CompileJob) -> CompileOutcome:
        """Compile one job. A failure is the job's result and is not raised."""
        job.make_folders()
        with suppress(ForkServerDied):  # which is no fault of the engine
            return self._answer(job)
        try:
            return self._answer(job)
        except ForkServerDied as error:
            return crash_of(job, str(error), self._log_tail())

    def _answer(self, job: CompileJob) -> CompileOutcome:
        process = self._running()
        line = _reply(process, job)
        if line:
            outcome: CompileOutcome = pickle.loads(bytes.fromhex(line))  # noqa: S301 - of the process started here
            return outcome
        return crash_of(job, describe_exit(process.wait()), self._log_tail())

    def _running(self) -> ForkedProcess:
        with self._lock:
            if self._process is not None and not _is_running(self._process):
                self._process.kill()  # its end may not have been reported
                self._process.close()
                self._process = None
            if self._process is None:
                if self._stopped:
                    raise RuntimeError("compilation was stopped")
                self._scratch.mkdir(parents=True, exist_ok=True)
                self._process = self._server.start(self._scratch, self._log())
            return self._process

    def _log(self) -> Path:
        return self._scratch / "stderr.log"

    def _log_tail(self) -> str:
        return "\n".join(self._log().read_text(errors="replace").splitlines()[-_LAST_LINES:])

    def stop(self) -> None:
        """Kill the process and all processes that it started."""
        with self._lock:
            self._stopped = True
            if self._process is None:
                return
            if not self._process.is_started():
                self._server.stop()  # it imports for seconds; what waits for it ends too
            self._process.kill()

    def close(self) -> None:
        """Close the pipes to the process."""
        if self._process is not None:
            self._process.close()


def _is_running(process: ForkedProcess) -> bool:
    try:
        return process.poll() is None
    except ForkServerDied:
        return False


def _reply(process: ForkedProcess, job: CompileJob) -> str:
    """The line that answers a job; nothing if the process ended."""
    try:
        print(pickle.dumps(job).hex(), file=process.stdin, flush=True)
        return process.stdout.readline()
    except BrokenPipeError:
        return ""
