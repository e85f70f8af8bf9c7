"""Options of a trace, their compiler settings, and its placement on a core of a device or of this host's CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from ..backends.interface import Backend, CompilerOption, CompileSettings, precision_of
from ..config.partitioner import PartitionerConfig, compiler_arguments


@dataclass(frozen=True)
class TraceOptions:
    """Options of `trace` for the engine and its compiler."""

    compiler_workdir: str | Path | None = None
    compiler_args: str | Sequence[str] | None = None
    partitioner_config: PartitionerConfig | None = None
    inline_weights_to_neff: bool = True
    cpu_backend: bool = False
    compiler_python: str | Path | None = None
    """Python interpreter of the engine's compiler; NeuronX has no such option."""

    def __post_init__(self) -> None:
        _ = self.arguments

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of the compiler: a list unchanged, a string split as a shell would."""
        try:
            return compiler_arguments(self.compiler_args or ())
        except ValueError as error:
            raise ValueError(f"compiler_args: {error}") from error


def unsupported_options(engine: Backend, options: TraceOptions) -> list[str]:
    """Return the names of the given compiler options that the engine does not support."""
    requested: dict[CompilerOption, object] = {
        "compiler_workdir": options.compiler_workdir,
        "compiler_args": options.arguments,
        "compiler_python": options.compiler_python,
    }
    unsupported: list[str] = [name for name, value in requested.items() if value and name not in engine.options]
    trace_kwargs = (options.partitioner_config and options.partitioner_config.trace_kwargs) or ()
    return unsupported + [
        f"partitioner_config.trace_kwargs.{name}"
        for name, value in trace_kwargs
        if value and name not in engine.options
    ]


def compile_settings(engine: Backend, options: TraceOptions, part: str = "") -> CompileSettings:
    """Build the compiler settings of one program; its working directory is `part` below the given one.

    The directory is created. Inputs and outputs keep their dtypes; an engine without float32 computes in its own type.
    """
    workdir = None
    if options.compiler_workdir is not None:
        workdir = Path(options.compiler_workdir).resolve() / part
        workdir.mkdir(parents=True, exist_ok=True)
    precision = precision_of(engine, "float32")
    python = None if options.compiler_python is None else Path(options.compiler_python)
    return CompileSettings(precision=precision, workdir=workdir, args=options.arguments, python=python)


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
