"""Host checks: installed packages, and the cores that affinity and a container's quota leave to
this process.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from ...backends.interface import TorchPinned
from ...backends.registry import get_backend
from ...backends.versions import newer_than_tested, release

_log = logging.getLogger(__name__)


def check_requirements(requires: Iterable[tuple[str, str, str]], backend: str) -> None:
    """Check that every (distribution, module, version) is installed, in a version that can run the
    archive.

    Code of an engine that pins torch's minor version needs that one; anything else runs on the version that it requires
    or a later one. A torch that is newer than all that were run is logged once.

    Raises:
        RuntimeError: a package is missing or does not fit; the message says which to install.
    """
    installed = []
    for distribution, module, packaged in requires:
        here = installed_version(distribution, module)
        if here is None:
            raise RuntimeError(
                f"this archive needs {distribution}, which is not installed here: "
                f"pip install {distribution}=={packaged}"
            )
        installed.append((distribution, packaged, here))
    for distribution, packaged, here in installed:
        pinned = distribution == "torch" and _pins_torch_minor(backend)
        if not (_same_minor(here, packaged) if pinned else _at_least(here, packaged)):
            wanted = f"{'.'.join(map(str, release(packaged)[:2]))}.*" if pinned else packaged
            relation = "==" if pinned else ">="
            raise RuntimeError(
                f"this archive needs {distribution} {relation} {wanted}; version {here} is installed, which cannot run "
                f'it: pip install "{distribution}{relation}{wanted}", or package the model again for {here}'
            )
        if distribution == "torch" and (message := newer_than_tested(here)) is not None:
            _warn_once(message)


@cache
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


def _pins_torch_minor(backend: str) -> bool:
    engine = get_backend(backend)
    return isinstance(engine, TorchPinned) and engine.pins_torch_minor


def installed_version(distribution: str, module: str) -> str | None:
    """Return the version of a package, of whichever distribution (onnxruntime-gpu) has the module.

    None if missing.
    """
    if find_spec(module) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = getattr(importlib.import_module(module), "__version__", None)
        return version if isinstance(version, str) else None


def _same_minor(here: str, packaged: str) -> bool:
    return release(here)[:2] == release(packaged)[:2]


def _at_least(here: str, packaged: str) -> bool:
    return release(here) >= release(packaged)


_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def available_cores(control_groups: Path = _CONTROL_GROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Count whole cores, at least 1: the affinity mask or a control group's CPU quota (v1 or v2),
    whichever is less.
    """
    quotas = list(_quotas(control_groups, membership))
    return max(1, int(min([float(_affinity()), *quotas])))


def threads_per_worker(cores: int, workers: object) -> int:
    """Divide the cores among the workers. Without `maxWorkers` TorchServe starts one worker a core.

    >>> threads_per_worker(8, 2), threads_per_worker(2, 4), threads_per_worker(8, None)
    (4, 1, 1)
    """
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        return 1
    return max(1, cores // workers)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
