"""Where the programs of a trace lie on disk for as long as the trace lives."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path


class Folder:
    """A private directory that goes when nobody holds this any more, or the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="traced-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork has a copy of the object, but the directory is its parent's
        shutil.rmtree(path, ignore_errors=True)
