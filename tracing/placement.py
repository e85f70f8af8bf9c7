"""Naming the core that a trace runs on."""

from __future__ import annotations

from .core import cores_of
from .traced import Traced


def move_trace_to_device(traced: Traced, device_id: int) -> None:
    """Let `traced` run on core `device_id` from now on, counted from 0; it is loaded again there.

    Cores are those of the engine's devices. Traces that are told nothing take turns on them.

    For an engine that runs on the CPU they are those that this process may use: the calling thread is on the core for
    the length of a call, threads that the engine starts while it loads stay there, and there is one thread. Without
    this a trace runs wherever the system puts it, with as many threads as torch has.

    Raises:
        ValueError: there is no such core.
        CannotLoad: the program cannot be loaded there.
    """
    cores = cores_of(traced.engine)
    if not 0 <= device_id < len(cores):
        raise ValueError(f"device {device_id}: this process may use {len(cores)} cores, 0 to {len(cores) - 1}")
    traced.core = cores[device_id]
    traced.reload()
