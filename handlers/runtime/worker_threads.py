"""Threads of each worker: its share of the cores."""

from __future__ import annotations


def threads_per_worker(cores: int, workers: object) -> int:
    """Divide the cores among the workers. Without `maxWorkers` TorchServe starts one worker a core.

    >>> threads_per_worker(8, 2), threads_per_worker(2, 4), threads_per_worker(8, None)
    (4, 1, 1)
    """
    count = worker_count(workers)
    return 1 if count is None else max(1, cores // count)


def worker_count(workers: object) -> int | None:
    """Return the value of `maxWorkers`, which may be of any type; None if it is no number of workers.

    >>> worker_count(2), worker_count("2"), worker_count(True), worker_count(0)
    (2, None, None, None)
    """
    return workers if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1 else None
