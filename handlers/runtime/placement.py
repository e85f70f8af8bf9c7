"""`placement: cores`: each worker on cores of its own, so that none is moved about, or computes where another does.

On a CPU a worker is pinned to its share of the host's cores, with as many threads. On a Neuron device it is given one
NeuronCore. Workers beyond the shares begin again with the first one. Where nothing says how many workers there are, a
worker takes the NeuronCore of its own number: two on one core cannot both start.

A worker's number is the least that no other living worker has. It is a file that the worker's process has locked. The
system unlocks it when the process ends, however it ends: the worker that takes its place finds the number free.
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
from itertools import count, pairwise
from math import ceil
from pathlib import Path

from ...config.manifest import FILE_NAME, Manifest
from .host import available_cores

_log = logging.getLogger(__name__)

_NEURON = ("neuronx", "neuron")
_NEURON_CORES = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
_THREADS = Path("/proc/self/task")


def apply_placement(
    manifest: Manifest, archive: Path, workers: object, environment: MutableMapping[str, str]
) -> int | None:
    """Put this process where it is to be, before anything of it computes. Returns the threads for which that is.

    `workers` is `maxWorkers`, however it is written; `environment` is that of the process. None: `threads` and the
    number of workers say how many threads, as without a placement.

    Raises:
        RuntimeError: this host cannot do it; says why.
    """
    if manifest.placement != "cores":
        return None
    try:
        if manifest.backend in _NEURON:
            _on_neuron_core(archive, workers, environment)
            return None
        return _on_cores(archive, workers, manifest.threads)
    except OSError as error:
        raise RuntimeError(f"placement: cores is not possible here ({error}): leave placement out") from error


def _on_neuron_core(archive: Path, workers: object, environment: MutableMapping[str, str]) -> None:
    given = [name for name in _NEURON_CORES if name in environment]
    if given:
        _log.info("placement: as %s says", " and ".join(given))
        return
    number, shares = acquire_worker_index(worker_lock_directory(archive)), _count(workers)
    environment["NEURON_RT_VISIBLE_CORES"] = str(number if shares is None else number % shares)
    _log.info("placement: NeuronCore %s", environment["NEURON_RT_VISIBLE_CORES"])


def _on_cores(archive: Path, workers: object, threads: int | None) -> int:
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("placement: cores needs Linux, which can pin a process: leave placement out")
    cores = sorted(os.sched_getaffinity(0))
    usable = available_cores()
    shares = partition_cores(cores, workers, threads)
    share = shares[acquire_worker_index(worker_lock_directory(archive)) % len(shares)]
    pin_process(share)
    _log.info("placement: cores %s", ", ".join(map(str, share)))
    # A container's quota may be less than the cores that it may use.
    return threads or min(len(share), ceil(usable / len(shares)))


def partition_cores(cores: Sequence[int], workers: object, threads: int | None) -> list[tuple[int, ...]]:
    """The cores of each worker: as many shares as workers, or of as many cores as threads, where these are given.

    Without `maxWorkers` TorchServe starts one worker a core. No core is in two shares, and none is left over.

    >>> partition_cores(range(8), 3, None)
    [(0, 1), (2, 3, 4), (5, 6, 7)]
    >>> partition_cores(range(8), 3, 4)
    [(0, 1, 2, 3), (4, 5, 6, 7)]
    >>> partition_cores([2, 5], 4, None)
    [(2,), (5,)]
    """
    wanted = _count(workers) or len(cores) if threads is None else len(cores) // threads
    count = max(1, min(wanted, len(cores)))
    edges = [index * len(cores) // count for index in range(count + 1)]
    return [tuple(cores[begin:end]) for begin, end in pairwise(edges)]


def pin_process(cores: Sequence[int]) -> None:
    """Keep this process to some cores: the threads that it has, and those that these start.

    Raises:
        OSError: the system does not allow it.
    """
    for thread in [int(name) for name in os.listdir(_THREADS)]:  # noqa: PTH208 - names alone
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread, cores)


def _count(workers: object) -> int | None:
    return workers if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1 else None


def acquire_worker_index(directory: Path) -> int:
    """The least number that is free in `directory`, from 0 on; it is this process's until it ends.

    Raises:
        OSError: the files cannot be made or locked.
    """
    for number in count():
        # Never closed: the lock goes with the last descriptor.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(directory / str(number), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return number
    raise AssertionError  # for the type checker: there is always a further number


def worker_lock_directory(archive: Path) -> Path:
    """The directory for the numbers of an unpacked archive's workers, private to the user who runs them.

    It goes by what the archive is, not by where it lies: two servers of one archive share one host's cores.

    Raises:
        OSError: it cannot be made.
        RuntimeError: somebody else has put something in its place.
    """
    which = sha256((archive / FILE_NAME).read_bytes()).hexdigest()[:32]
    directory = Path(tempfile.gettempdir()) / f"neuron-lstm-workers-{os.geteuid()}-{which}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise RuntimeError(f"{directory} is not this user's own directory: remove it, or set TMPDIR to a private one")
    return directory
