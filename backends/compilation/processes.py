"""Compiling processes of one packaging: started when programs need them, and kept for the next ones.

Each imports torch first, which takes seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from .process import CompileProcess


class CompileProcesses:
    """The processes, within a `with` block; at its end, they end with the compilers that they started."""

    def __init__(self, scratch: Path, most: int | None = None) -> None:
        """Use `scratch`, a private directory, for the compilers' files, and at most so many processes.

        None: one for each core.
        """
        self._scratch = scratch
        self._most = most or len(os.sched_getaffinity(0))
        self._running: list[CompileProcess] = []
        self._stopped: list[CompileProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        for process in self._stopped:
            process.close()

    def take(self, wanted: int) -> list[CompileProcess]:
        """Return so many processes, or as many as there may be."""
        count = min(wanted, self._most)
        while len(self._running) < count:
            self._running.append(CompileProcess(self._scratch / f"worker{len(self._stopped) + len(self._running)}"))
        return self._running[:count]

    def stop(self) -> None:
        """Stop all processes, so that no thread waits for one; later programs get others.

        Their pipes stay open until the end, since a thread may read from them.
        """
        for process in self._running:
            process.stop()
        self._stopped += self._running
        self._running = []
