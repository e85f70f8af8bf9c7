"""Parallel compilation, in as many processes as there are cores.

The processes are forked from one that imports torch once: that takes 4 s of CPU time on slow processors, and a fork
takes 50 ms. `multiprocessing`'s fork server imports the caller's main module again in each process (a script without a
guard fails), has a socket file in the temporary directory (a long path is refused), and passes no environment.

Each process has a process group and a temporary directory of its own. When packaging stops (an unsupported program, a
failure, Ctrl-C), the processes end, with the compilers that they started, and leave no files behind.

A single engine whose programs serve every shape compiles them in this process, which has imported torch already. Beside
other engines it has a separate process: if that ends, the others continue.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

from ..cores import available_cores
from ..exported_program import load_program
from ..registry import ENGINES
from ..subprocesses import describe_exit, package_path, python_command
from .job import CompileFailure, CompileJob, CompileOutcome, compile_job, crash_of

_LAST_LINES = 20
_NO_PROCESS = (
    "no compiling process can be started: the process that forks them ended, or the system has no room for another "
    "one. It wrote the cause to standard error, unless it was killed"
)


def compile_all(
    jobs: Sequence[CompileJob], processes: CompileProcesses, report: Callable[[CompileOutcome], None]
) -> list[CompileOutcome]:
    """Compile all jobs.

    After a job fails, the other jobs of its engine are skipped; when no engine is left, all processes are stopped.
    `report` is called with each result as it arrives.
    """
    if _are_compiled_here(jobs):
        return _compile_here(jobs, report)
    engines = {job.backend for job in jobs}
    outcomes: list[CompileOutcome] = []
    pending = list(jobs)
    # Programs for any shape are compiled in less time than a further process takes to start.
    limit = min(available_cores(), len({(job.backend, job.bucket) for job in jobs}))
    try:
        while engines and (pending or processes.busy):
            while pending and processes.busy < limit:
                job = pending.pop(0)
                job.make_folders()
                processes.start(job)
            for outcome in processes.next_outcomes():
                outcomes.append(outcome)
                report(outcome)
                if isinstance(outcome, CompileFailure):
                    engines.discard(outcome.job.backend)
            pending = [job for job in pending if job.backend in engines]
    except BaseException:
        processes.abort()
        raise
    if processes.busy:
        processes.stop()
    return outcomes


def _are_compiled_here(jobs: Sequence[CompileJob]) -> bool:
    """Whether the jobs, if there are any, are those of one engine of this package, and few."""
    engines = {job.backend for job in jobs}
    few = all(job.bucket is None and job.partitioner is None for job in jobs)
    return few and len(engines) <= 1 and engines <= ENGINES.keys()


def _compile_here(jobs: Sequence[CompileJob], report: Callable[[CompileOutcome], None]) -> list[CompileOutcome]:
    outcomes: list[CompileOutcome] = []
    for job in jobs:
        job.make_folders()
        outcomes.append(compile_job(job, load_program))
        report(outcomes[-1])
        if isinstance(outcomes[-1], CompileFailure):
            break
    return outcomes


@contextmanager
def compile_processes(scratch: Path) -> Iterator[CompileProcesses]:
    """Provide compiling processes; at the end of the block, they end with the compilers that they started.

    `scratch` is a private directory for the compilers' files.
    """
    with fork_server:
        processes = CompileProcesses(fork_server, scratch)
        try:
            yield processes
        finally:
            processes.stop()


class CompileProcesses:
    """The compiling processes of one `compile_processes` block: started for jobs, and kept for the next ones."""

    def __init__(self, server: ForkServer, scratch: Path) -> None:
        self._server = server
        self._scratch = scratch
        self._numbers = count()
        self._idle: list[_Process] = []
        self._running: dict[Connection, tuple[_Process, CompileJob]] = {}

    def prepare(self) -> None:
        """Begin the import that all processes share, beside other work of the caller."""
        self._server.start()

    @property
    def busy(self) -> int:
        """Number of processes that compile."""
        return len(self._running)

    def start(self, job: CompileJob) -> None:
        """Start a job, in a process that is free or a new one."""
        self._idle = [process for process in self._idle if not process.connection.poll()]  # without those that ended
        process = self._idle.pop() if self._idle else _Process(self._server, self._scratch / str(next(self._numbers)))
        self._running[process.connection] = process, job
        process.send(job)

    def next_outcomes(self) -> list[CompileOutcome]:
        """Wait for a process, and return the outcomes that have come. A crash is the outcome of its job."""
        arrived = [self._running.pop(connection) for connection in wait(list(self._running))]  # type: ignore[call-overload]
        return [self._outcome(process, job) for process, job in arrived]

    def _outcome(self, process: _Process, job: CompileJob) -> CompileOutcome:
        answer = process.receive()
        if isinstance(answer, int):
            return crash_of(job, describe_exit(answer), process.last_lines())
        if answer is None:
            return crash_of(job, _NO_PROCESS, process.last_lines())
        self._idle.append(process)
        return answer

    def stop(self) -> None:
        """End all processes."""
        processes = [*self._idle, *(process for process, _ in self._running.values())]
        self._idle, self._running = [], {}
        for process in processes:
            process.end()
        for process in processes:
            process.close()

    def abort(self) -> None:
        """End all processes, also the fork server: it may import for seconds before it starts the last of them."""
        self._server.end()
        self.stop()


class _Process:
    """A compiling process, in the directory `scratch`."""

    def __init__(self, server: ForkServer, scratch: Path) -> None:
        scratch.mkdir(parents=True)
        self._log = scratch / "stderr.log"
        self.connection, theirs = Pipe()
        with theirs, self._log.open("wb") as stderr:
            server.fork(theirs.fileno(), stderr.fileno())
        self.send((str(scratch), {**_environment(), "TMPDIR": str(scratch)}))

    def send(self, message: object) -> None:
        """Send a message, which is lost if the process has ended: that is noted where its answer is received."""
        with suppress(ConnectionError):
            self.connection.send(message)

    def receive(self) -> CompileOutcome | int | None:
        """Return the outcome of a job, or the exit code; None if the fork server ended before."""
        try:
            answer: CompileOutcome | int = self.connection.recv()
        except (EOFError, ConnectionError):
            return None
        return answer

    def last_lines(self) -> str:
        """Return the last lines that the process and its compilers printed."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:])

    def end(self) -> None:
        """Let the process end, with all processes that it started."""
        with socket.socket(fileno=os.dup(self.connection.fileno())) as ours, suppress(OSError):  # it may have ended
            ours.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Wait until they have ended."""
        while self.receive() is not None:
            pass
        self.connection.close()


class ForkServer:
    """A fork server: started for its first process, ended with the last of the blocks that use it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._blocks = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self.end()

    def start(self) -> socket.socket:
        """Start the server, if it does not run: it imports while the caller does something else."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.end()
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

    def fork(self, *files: int) -> None:
        """Fork a process with these files. If the server ends before it has read the request, they are closed."""
        with self._lock:
            try:
                socket.send_fds(self.start(), [b"+"], list(files))
            except ConnectionError:  # the former server was still ending
                self.end()
                socket.send_fds(self.start(), [b"+"], list(files))

    def end(self) -> None:
        """End the server. The processes that it forked go on."""
        with self._lock:
            if self._requests is not None:
                self._requests.close()
            if self._process is not None:
                self._process.kill()  # it may be importing
                self._process.wait()
            self._requests = self._process = None


fork_server = ForkServer()
"""The fork server of this process."""


def _environment() -> dict[str, str]:
    # Some launchers pass a variable without a name, which Python cannot set.
    return {**{name: value for name, value in os.environ.items() if name}, "PYTHONPATH": package_path()}
