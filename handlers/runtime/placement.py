"""Threads of workers, and `placement: cores`, which pins each worker to separate cores.

A CPU worker is pinned to its share of the host's cores, with as many threads. An engine with cores of its own
(`Backend.core_variables`) is assigned one by environment variables. If there are more workers than shares, assignment
starts again with the first share. If the number of workers is not known, a worker takes the engine's core of its own
index: two workers cannot both start on one.

A worker's index is the least that no other living worker has. It is a file that the worker's process has locked. The
system unlocks it when the process ends, however it ends: the worker that replaces it finds the index free.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import count
from math import ceil
from pathlib import Path

from ...backends.cores import available_cores
from ...backends.interface import Backend
from ...backends.registry import get_backend
from ...config.manifest import FILE_NAME, Manifest

_log = logging.getLogger(__name__)


def apply_placement(
    manifest: Manifest, archive: Path, workers: object, environment: MutableMapping[str, str]
) -> int | None:
    """Pin this process, before anything in it computes; returns its number of threads.

    `workers` is `maxWorkers`, of any type; `environment` is that of the process. None: `threads` and the number of
    workers determine the threads, as without a placement.

    Raises `RuntimeError`: this host does not allow it; the message says why.
    """
    if manifest.placement != "cores":
        return None
    try:
        engine = get_backend(manifest.backend)
        if engine.core_variables:
            _assign_core(engine, archive, workers, environment)
            return None
        return _pin_to_share(archive, workers, manifest.threads)
    except OSError as error:
        raise RuntimeError(f"placement: cores is not possible here ({error}): leave placement out") from error


def _assign_core(engine: Backend, archive: Path, workers: object, environment: MutableMapping[str, str]) -> None:
    given = [name for name in engine.core_variables if name in environment]
    if given:
        _log.info("placement: set by %s", " and ".join(given))
        return
    index, shares = acquire_worker_index(worker_lock_directory(archive)), _worker_count(workers)
    core = index if shares is None else index % shares
    environment.update(engine.core_environment(core))
    _log.info("placement: core %d of %s", core, engine.name)


def _pin_to_share(archive: Path, workers: object, threads: int | None) -> int:
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("placement: cores needs Linux, which can pin a process: leave placement out")
    cores = sorted(os.sched_getaffinity(0))
    usable = available_cores()
    shares = partition_cores(cores, workers, threads)
    share = shares[acquire_worker_index(worker_lock_directory(archive)) % len(shares)]
    pin_process(share)
    _log.info("placement: cores %s", ", ".join(map(str, share)))
    # A container's quota may be less than its cores.
    return threads or min(len(share), ceil(usable / len(shares)))


def partition_cores(cores: Sequence[int], workers: object, threads: int | None) -> list[tuple[int, ...]]:
    """Divide the cores into one share for each worker, or into shares of `threads` cores.

    Without `maxWorkers` TorchServe starts one worker a core. No core is in two shares, and none is left over.

    >>> partition_cores(range(8), 3, None)
    [(0, 1), (2, 3, 4), (5, 6, 7)]
    >>> partition_cores(range(8), 3, 4)
    [(0, 1, 2, 3), (4, 5, 6, 7)]
    >>> partition_cores([2, 5], 4, None)
    [(2,), (5,)]
    """
    wanted = _worker_count(workers) or len(cores) if threads is None else len(cores) // threads
    count = max(1, min(wanted, len(cores)))
    bounds = [index * len(cores) // count for index in range(count + 1)]
    return [tuple(cores[start:end]) for start, end in zip(bounds, bounds[1:])]


def pin_process(cores: Sequence[int]) -> None:
    """Pin this process to some cores: its threads, and those that these start.

    Raises `OSError`: the system does not allow it.
    """
    for thread in [int(name) for name in os.listdir("/proc/self/task")]:  # noqa: PTH208 - names alone
        with suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(thread, cores)


def acquire_worker_index(directory: Path) -> int:
    """Lock the least free index in `directory`, from 0 on, until this process ends.

    Raises `OSError`: the files cannot be made or locked.
    """
    for index in count():
        # Never closed: the lock is released with the last descriptor.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(directory / str(index), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return index
    raise AssertionError  # for the type checker: there is always a further index


def worker_lock_directory(archive: Path) -> Path:
    """Make the directory of the worker indices of an unpacked archive.

    It is private to the user who runs the workers. Its name depends on the archive's content, not on its path: two
    servers of one archive share one host's cores.

    Raises `OSError`: it cannot be made.
    Raises `RuntimeError`: its path belongs to another user, or is not a directory.
    """
    which = sha256((archive / FILE_NAME).read_bytes()).hexdigest()[:32]
    directory = Path(tempfile.gettempdir()) / f"neuron-lstm-workers-{os.geteuid()}-{which}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise RuntimeError(f"{directory} is not this user's own directory: remove it, or set TMPDIR to a private one")
    return directory


def threads_per_worker(cores: int, workers: object) -> int:
    """Divide the cores among the workers. Without `maxWorkers` TorchServe starts one worker a core.

    >>> threads_per_worker(8, 2), threads_per_worker(2, 4), threads_per_worker(8, None)
    (4, 1, 1)
    """
    count = _worker_count(workers)
    return 1 if count is None else max(1, cores // count)


def _worker_count(workers: object) -> int | None:
    """Return the value of `maxWorkers`, which may be of any type; None if it is no number of workers.

    >>> _worker_count(2), _worker_count("2"), _worker_count(True), _worker_count(0)
    (2, None, None, None)
    """
    return workers if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1 else None
