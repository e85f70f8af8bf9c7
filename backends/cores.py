"""Cores that affinity and a container's quota leave to this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

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
    for controllers, path in _memberships(membership):
        if not controllers:
            yield from _along(control_groups, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mounted in (control_groups / "cpu", control_groups / controllers):
                yield from _along(mounted, path, _quota_v1)


def _memberships(file: Path) -> list[tuple[str, PurePosixPath]]:
    """Return (controllers, path) for each line like `4:cpu,cpuacct:/docker/x`.

    Version 2 has no controllers.
    """
    lines = [line.split(":", 2) for line in _read(file).splitlines()]
    return [(line[1], PurePosixPath(line[2])) for line in lines if len(line) == 3]


def _along(root: Path, path: PurePosixPath, quota: Callable[[Path], float | None]) -> Iterator[float]:
    """Yield the quotas of a group and of its ancestors.

    In a container the path may be the host's, and not exist.
    """
    relative = PurePosixPath(str(path).lstrip("/"))
    for part in (relative, *relative.parents):
        found = quota(root / part)
        if found is not None:
            yield found


def _quota_v2(group: Path) -> float | None:
    quota, _, period = _read(group / "cpu.max").strip().partition(" ")
    return _cores(quota, period)


def _quota_v1(group: Path) -> float | None:
    return _cores(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))


def _cores(quota: str, period: str) -> float | None:
    """Convert a quota in microseconds per period to cores; "max", -1 and invalid text are no quota."""
    if not quota.strip().isdigit() or not period.strip().isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text("ascii")
    except (OSError, ValueError):
        return ""
