"""Cores that affinity and a container's quota leave to this process, and torch's threads in a fork of it."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import torch

from .interface import LoadError

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def available_cores(control_groups: Path = _CONTROL_GROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Count the whole cores that this process may use, at least 1.

    That is the affinity mask or a control group's CPU quota (v1 or v2), whichever is less.
    """
    quotas = list(_quotas(control_groups, membership))
    return max(1, int(min([float(_affinity()), *quotas])))


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(control_groups: Path, membership: Path) -> Iterator[float]:
    """Yield the quota in cores of every control group that this process is in."""
    lines = [line.split(":", 2) for line in _read(membership).splitlines()]  # like `4:cpu,cpuacct:/docker/x`
    for controllers, path in ((line[1], PurePosixPath(line[2])) for line in lines if len(line) == 3):
        if not controllers:  # version 2
            yield from _along(control_groups, path, lambda group: _read(group / "cpu.max").partition(" ")[::2])
        elif "cpu" in controllers.split(","):
            for mounted in (control_groups / "cpu", control_groups / controllers):
                yield from _along(
                    mounted, path, lambda group: (_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))
                )


def _along(root: Path, path: PurePosixPath, read: Callable[[Path], Sequence[str]]) -> Iterator[float]:
    """Yield the quotas of a group and of its ancestors. In a container the path may be the host's, and not exist.

    `read` returns a quota and its period in microseconds; "max", -1 and invalid text are no quota.
    """
    relative = PurePosixPath(str(path).lstrip("/"))
    for part in (relative, *relative.parents):
        quota, period = map(str.strip, read(root / part))
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text("ascii")
    except (OSError, ValueError):
        return ""


_ENDING_SECONDS = 0.02
"""The time in which a thread that has ended for Python ends for the system, also on a busy one."""

_is_lost = False
_will_be_lost = False


def are_threads_lost() -> bool:
    """Whether this process is a fork of one that may have computed on several threads."""
    return _is_lost


def set_torch_threads(threads: int) -> None:
    """Set the number of threads of torch's operators.

    Raises `LoadError`: more than one cannot work in this process; the message says what to do.
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


_renewed = min(_threads_beside_python(), _affinity() - 1)  # threads of the BLAS library
os.register_at_fork(before=_before_fork, after_in_child=_in_fork)
if multiprocessing.parent_process() is not None and multiprocessing.get_start_method(allow_none=True) == "fork":
    _is_lost = True  # the fork was before this import: the parent may have computed
