"""Placement of traces: cores of the engine's devices in rotation, or one core of this host's CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch

from ..backends.interface import Backend

_rotation = count()  # of the traces of this process without a selected core


def available_cores(engine: Backend) -> list[int]:
    """List the cores of the engine's devices, or the CPU cores of this process."""
    cores = engine.cores()
    return sorted(os.sched_getaffinity(0)) if cores is None else list(range(cores))


def assign_core(engine: Backend) -> int | None:
    """Select the next core of the engine's devices in rotation; None on a CPU, which means any core."""
    cores = engine.cores()
    return None if cores is None else next(_rotation) % max(1, cores)


@contextmanager
def pinned_to_core(engine: Backend, core: int | None) -> Iterator[None]:
    """Pin the calling thread to one CPU core, with one thread of torch; restore both afterwards.

    Without a core, or for a core of a device, this does nothing.
    """
    if core is None or engine.cores() is not None:
        yield
        return
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)
