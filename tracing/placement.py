"""Where a trace runs."""

from __future__ import annotations

import os

from .traced import Traced


def move_trace_to_device(traced: Traced, device_id: int) -> None:
    """Let `traced` run on core `device_id` from now on, in one thread; it is loaded again there.

    Cores are those that this process may use, counted from 0. The calling thread is on the core for the length of a
    call, and threads that an engine starts while it loads stay there. Without this a trace runs wherever the system
    puts it, with as many threads as torch has.

    Raises:
        ValueError: there is no such core.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 0 <= device_id < len(cores):
        raise ValueError(f"device {device_id}: this process may use {len(cores)} cores, 0 to {len(cores) - 1}")
    traced.core = cores[device_id]
    traced.reload()
