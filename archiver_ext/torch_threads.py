"""Number of torch's own threads, for calls that take turns with those of other engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from ..backends.cores import available_cores
from ..config.yaml_text import max_workers
from ..handlers.runtime.placement import threads_per_worker
from ..inference.reader import ArchiveReader

ArgumentsP = ParamSpec("ArgumentsP")
ResultT = TypeVar("ResultT")


def on_threads(threads: int, call: Callable[ArgumentsP, ResultT]) -> Callable[ArgumentsP, ResultT]:
    """Wrap a call so that it runs with a number of torch's own threads.

    The number belongs to the whole process, and loading an engine that starts threads sets it to 1: a call that is
    interleaved with such an engine must set it back.
    """

    @wraps(call)
    def wrapper(*args: ArgumentsP.args, **options: ArgumentsP.kwargs) -> ResultT:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return call(*args, **options)

    return wrapper


def worker_threads(archive: Path) -> int:
    """Return the archive's `threads` or, without them, the available cores divided by its `maxWorkers`.

    Costs that are measured with them are those of a worker.

    Raises `ArchiveError`: there is no such archive, or it is damaged.
    """
    reader = ArchiveReader(archive)
    return reader.manifest().threads or threads_per_worker(available_cores(), max_workers(reader.config_text() or ""))
