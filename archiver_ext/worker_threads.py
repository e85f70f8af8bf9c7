"""Threads of one worker that serves an archive on this host."""

from __future__ import annotations

from pathlib import Path

from ..backends.cores import available_cores
from ..config.yaml_text import max_workers
from ..handlers.runtime.placement import threads_per_worker
from ..inference.reader import ArchiveReader


def worker_threads(archive: Path) -> int:
    """Return the archive's `threads` or, without them, the available cores divided by its `maxWorkers`.

    Costs that are measured with them are those of a worker.

    Raises:
        ArchiveError: there is no such archive, or it is damaged.
    """
    reader = ArchiveReader(archive)
    return reader.manifest().threads or threads_per_worker(available_cores(), max_workers(reader.config_text() or ""))
