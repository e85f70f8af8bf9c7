"""Threads of torch in a fork, which does not inherit those of its parent and would wait for them.

Torch does not tell whether it has started threads, so all count that Python has not started. Only those that numpy's
BLAS starts when torch is imported, one for each other core, do not: a fork renews them.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import torch

from .interface import LoadError

_ENDING_SECONDS = 0.02
"""The time in which a thread that has ended for Python ends for the system, also on a busy one."""

_is_lost = False
_will_be_lost = False


def are_threads_lost() -> bool:
    """Whether this process is a fork of one that may have computed on several threads."""
    return _is_lost


def set_torch_threads(threads: int) -> None:
    """Set the number of threads of torch's operators.

    Raises:
        LoadError: more than one cannot work in this process; the message says what to do.
    """
    if threads > 1 and are_threads_lost():
        raise LoadError(
            f"torch cannot run on {threads} threads here: this process is a fork of one that had computed, and does "
            f"not have its threads. Load the archive with threads=1, or start processes by multiprocessing's method "
            f"spawn or forkserver"
        )
    torch.set_num_threads(threads)


def _threads_beside_python() -> int:
    try:
        return len(os.listdir("/proc/self/task")) - threading.active_count()  # noqa: PTH208 - a fork waits for this
    except OSError:
        return 0  # the system does not say how many


def _before_fork() -> None:
    global _will_be_lost  # noqa: PLW0603 - the fork reads it
    _will_be_lost = _is_lost or _more_threads_stay()


def _more_threads_stay() -> bool:
    """Whether there are more threads than those that a fork renews, and they are not just ending."""
    until = time.monotonic() + _ENDING_SECONDS
    while _threads_beside_python() > _renewed:
        if time.monotonic() > until:
            return True
        time.sleep(_ENDING_SECONDS / 10)
    return False


def _in_fork() -> None:
    global _is_lost, _renewed
    _is_lost, _renewed = _will_be_lost, 0


def _threads_of_blas() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_threads_beside_python(), cores - 1)


_renewed = _threads_of_blas()
os.register_at_fork(before=_before_fork, after_in_child=_in_fork)
if multiprocessing.parent_process() is not None and multiprocessing.get_start_method(allow_none=True) == "fork":
    _is_lost = True  # the fork was before this import: the parent may have computed
