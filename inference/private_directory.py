"""Private working directories, deleted afterwards in every case."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)


@contextmanager
def private_directory(parent: Path | None = None) -> Iterator[Path]:
    """Create a directory for this user alone, deleted at the end; by default among temporary files."""
    path = Path(tempfile.mkdtemp(prefix=".neuron-lstm-", dir=parent)).resolve()
    try:
        yield path
    finally:
        for _ in range(2):  # a disk may fail once
            shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            _log.warning("%s cannot be deleted: delete it yourself", path)
