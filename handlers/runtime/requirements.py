"""Packages and memory that an archive needs on its host, before any of it is loaded."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from math import prod
from pathlib import Path

from ...backends.registry import get_backend
from ...backends.versions import release
from ...bucketing.padding import item_bytes, torch_dtype
from ...bucketing.shapes import Bucket
from ...config.json_codec import REPACKAGE
from ...config.manifest import FILE_NAME, Manifest, ManifestError

_LIMITS = tuple(Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes"))


def check_requirements(requires: Iterable[tuple[str, str, str]], backend: str) -> None:
    """Check that every required package is installed, in a version that can run the archive.

    Code of an engine that pins torch's minor version needs that one; anything else runs on the version that it requires
    or a later one.

    Raises `RuntimeError`: a package is missing or does not fit; the message says which to install.
    """
    installed = []
    for distribution, module, packaged in requires:
        here = installed_version(distribution, module)
        if here is None:
            raise RuntimeError(
                f"this archive needs {distribution}, which is not installed here: "
                f'pip install "{distribution}>={packaged}"'
            )
        installed.append((distribution, packaged, here))
    for distribution, packaged, here in installed:
        pinned = distribution == "torch" and get_backend(backend).pins_torch_minor
        given, needed = release(here), release(packaged)
        if not (given[:2] == needed[:2] if pinned else given >= needed):
            wanted = f"{'.'.join(map(str, needed[:2]))}.*" if pinned else packaged
            relation = "==" if pinned else ">="
            raise RuntimeError(
                f"this archive needs {distribution} {relation} {wanted}; version {here} is installed, which cannot run "
                f'it: pip install "{distribution}{relation}{wanted}", or package the model again for {here}'
            )


def installed_version(distribution: str, module: str) -> str | None:
    """Return the version of a package, of whichever distribution (onnxruntime-gpu) has the module. None if missing."""
    if find_spec(module) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = getattr(importlib.import_module(module), "__version__", None)
        return version if isinstance(version, str) else None


def check_memory(manifest: Manifest, available: int | None = None) -> None:
    """Refuse an archive whose largest bucket does not fit into memory.

    Its first call would fill the memory, and then fail. `available` is the memory in bytes; None: that of this host, or
    of its control group.

    Raises `ManifestError`: the message has the bucket, its size, and the memory.
    """
    available = total_memory() if available is None else available
    grid = manifest.grid
    largest = Bucket(grid.batches[-1], grid.lengths[-1])
    specs = (*manifest.inputs, *manifest.outputs, *(value.spec for value in manifest.carried))
    needed = sum(prod(spec.sizes(*largest)) * item_bytes(torch_dtype(spec)) for spec in specs)
    if needed > available:
        raise ManifestError(
            f"{FILE_NAME}: grid: the inputs, outputs and carried values of the largest bucket, "
            f"{largest.batch} x {largest.length}, take {needed / 2**30:.4g} GiB, and this host has "
            f"{available / 2**30:.4g} GiB of memory: serve on a host with more memory, or {REPACKAGE} with smaller "
            f"buckets"
        )


def total_memory(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Return the bytes of memory of this host or its control group, the less."""
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in limits:
        with suppress(OSError, ValueError):  # `max` is no limit
            least = min(least, int(file.read_text("ascii")))
    return least
