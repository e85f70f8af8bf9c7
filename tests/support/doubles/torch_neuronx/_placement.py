"""Placement of modules on cores. On a CPU modules do not move; requests are recorded and checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._cores import visible_cores
from ._trace import _require_neuron


def set_neuron_cores(trace: Any, start_nc: int = -1, nc_count: int = -1) -> None:
    """Load a module onto cores, in place."""
    _require_neuron(trace)
    _check(start_nc, nc_count)
    trace.start_core, trace.core_count = start_nc, max(nc_count, 1)


def set_multicore(trace: Any) -> None:
    """Load a module onto all visible cores, in place."""
    set_neuron_cores(trace, 0, visible_cores())


@contextmanager
def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
    """Place the modules that torch.jit.load reads in the context."""
    _check(start_nc, nc_count)
    yield


@contextmanager
def multicore_context() -> Iterator[None]:
    """Place modules that torch.jit.load reads in the context on all visible cores."""
    _check(0, visible_cores())
    yield


def _check(start_nc: int, nc_count: int) -> None:
    visible = visible_cores()
    if nc_count == 0 or nc_count < -1 or nc_count > visible:
        raise ValueError(f"nc_count: {nc_count} is no number of NeuronCores, {visible} are visible")
    if start_nc < -1 or max(start_nc, 0) + max(nc_count, 1) > visible:
        raise ValueError(f"start_nc: there is no NeuronCore {start_nc}, {visible} are visible")


def move_trace_to_device(trace: Any, device_id: int) -> None:
    """Move separated weights to a core, in place."""
    _require_neuron(trace)
    if not 0 <= device_id < visible_cores():
        raise RuntimeError(f"there is no NeuronCore {device_id}, {visible_cores()} are visible")
    trace.device = device_id


def lazy_load(trace: Any, enable_lazy_load: bool = True) -> None:
    """Load onto the core at the first call. Must be called before saving; in place."""
    _require_neuron(trace)
    trace.lazy = enable_lazy_load


def async_load(trace: Any, enable_async_load: bool = True) -> None:
    """Load onto the core while torch.jit.load returns. Must be called before saving; in place."""
    _require_neuron(trace)
    trace.asynchronous = enable_async_load
