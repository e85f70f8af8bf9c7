"""Where a trace runs: on cores of the engine's devices, in turn, or on one core of this host's CPU in one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch

from ..backends.interface import Backend, Placing

_turns = count()
"""Of the traces of this process that are loaded onto devices without being told where."""


def available_cores(engine: Backend) -> list[int]:
    """What `move_trace_to_device` chooses from: the cores of the engine's devices, or those of this process's CPU."""
    return list(range(engine.cores())) if isinstance(engine, Placing) else sorted(os.sched_getaffinity(0))


def assign_core(engine: Backend) -> int | None:
    """Where a trace goes that is told nothing: devices take turns; on a CPU anywhere."""
    return next(_turns) % max(1, engine.cores()) if isinstance(engine, Placing) else None


@contextmanager
def pinned_to_core(engine: Backend, core: int | None) -> Iterator[None]:
    """The calling thread on one core of the CPU, and torch with one thread there; both as they were afterwards.

    Nothing is done where no core is named, or where it is one of a device.
    """
    if core is None or isinstance(engine, Placing):
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
