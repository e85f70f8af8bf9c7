"""Compiling processes of one packaging: started when programs need them, and kept for the next ones.

They are forked from one process, because importing torch takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from ..cores import available_cores
from .fork_server import ForkServer, fork_server
from .process import CompileProcess


@contextmanager
def compile_processes(scratch: Path, most: int | None = None) -> Iterator[CompileProcesses]:
    """Provide compiling processes; at the end of the block, they end with the compilers that they started.

    `scratch` is a private directory for the compilers' files, `most` the largest number of processes; None: one for
    each core.
    """
    with fork_server() as server:
        processes = CompileProcesses(server, scratch, most)
        try:
            yield processes
        finally:
            processes.stop()
            processes.close()


class CompileProcesses:
    """The compiling processes of one `compile_processes` block."""

    def __init__(self, server: ForkServer, scratch: Path, most: int | None) -> None:
        self._server = server
        self._scratch = scratch
        self._most = most or available_cores()
        self._numbers = count()
        self._running: list[CompileProcess] = []
        self._stopped: list[CompileProcess] = []

    def prepare(self) -> None:
        """Begin the import that all processes share, beside other work of the caller."""
        self._server.prepare()

    def take(self, wanted: int) -> list[CompileProcess]:
        """Return so many processes, or as many as there may be."""
        number = min(wanted, self._most)
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
