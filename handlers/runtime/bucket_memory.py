"""Memory that the tensors of the largest bucket take, before any of them is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path

from ...bucketing.padding import item_bytes, torch_dtype
from ...bucketing.shapes import Bucket
from ...config.json_codec import REPACKAGE
from ...config.manifest import FILE_NAME, Manifest, ManifestError

_LIMITS = tuple(Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes"))


def check_memory(manifest: Manifest, available: int | None = None) -> None:
    """Refuse an archive whose largest bucket does not fit into memory.

    Its first call would fill the memory, and then fail. `available` is the memory in bytes; None: that of this host, or
    of its control group.

    Raises `ManifestError`: the message has the bucket, its size, and the memory.
    """
    available = total_memory() if available is None else available
    grid = manifest.grid
    largest = Bucket(grid.batches[-1], grid.lengths[-1])
    needed = _tensor_bytes(manifest, largest)
    if needed > available:
        raise ManifestError(
            f"{FILE_NAME}: grid: the inputs, outputs and carried values of the largest bucket, "
            f"{largest.batch} x {largest.length}, take {needed / 2**30:.4g} GiB, and this host has "
            f"{available / 2**30:.4g} GiB of memory: serve on a host with more memory, or {REPACKAGE} with smaller "
            f"buckets"
        )


def total_memory(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Return the bytes of memory of this host or its control group, the less."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_of_groups(limits)])


def _tensor_bytes(manifest: Manifest, bucket: Bucket) -> int:
    specs = (*manifest.inputs, *manifest.outputs, *(value.spec for value in manifest.carried))
    return sum(prod(spec.sizes(*bucket)) * item_bytes(torch_dtype(spec)) for spec in specs)


def _of_groups(limits: tuple[Path, ...]) -> Iterator[int]:
    for file in limits:
        with suppress(OSError, ValueError):  # `max` is no limit
            yield int(file.read_text("ascii"))
