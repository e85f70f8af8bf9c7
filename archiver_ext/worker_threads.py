"""Threads of one worker that serves an archive on this host."""

from __future__ import annotations

from pathlib import Path

import yaml

from ..handlers.runtime.cores import available_cores, threads_per_worker
from ..inference.reader import ArchiveReader


def worker_threads(archive: Path) -> int:
    """Return the archive's `threads` or, without them, the available cores divided by its `maxWorkers`.

    Costs that are measured with them are those of a worker.

    Raises:
        ArchiveError: there is no such archive, or it is damaged.
    """
    reader = ArchiveReader(archive)
    return reader.manifest().threads or threads_per_worker(available_cores(), _max_workers(reader.config_text()))


def _max_workers(config: str | None) -> object:
    """Return `maxWorkers` of a YAML; None if it has none, or if TorchServe could not read it either.

    >>> _max_workers("minWorkers: 2\\nmaxWorkers: 2"), _max_workers("[maxWorkers"), _max_workers(None)
    (2, None, None)
    """
    try:
        found = yaml.safe_load(config or "")
    except yaml.YAMLError:
        return None
    return found.get("maxWorkers") if isinstance(found, dict) else None
